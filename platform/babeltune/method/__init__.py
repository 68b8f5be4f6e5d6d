"""The contract of a method, which a plugin imports from here, and the math that methods share."""

from babeltune.method.contract import EVERY as EVERY
from babeltune.method.contract import Batch as Batch
from babeltune.method.contract import Cut as Cut
from babeltune.method.contract import Encode as Encode
from babeltune.method.contract import Gather as Gather
from babeltune.method.contract import Loss as Loss
from babeltune.method.contract import Masked as Masked
from babeltune.method.contract import Method as Method
from babeltune.method.contract import Needs as Needs
from babeltune.method.contract import TeacherVectors as TeacherVectors
from babeltune.method.contract import Tokens as Tokens
from babeltune.method.contract import encode_sides as encode_sides
from babeltune.method.contract import encode_together as encode_together
from babeltune.method.contract import joined as joined
from babeltune.method.contract import states_together as states_together
from babeltune.method.contract import tokens_from as tokens_from
from babeltune.method.own_share import OwnShare as OwnShare
from babeltune.method.registry import GROUP as GROUP
from babeltune.method.registry import TrialContext as TrialContext
from babeltune.method.registry import available as available
from babeltune.method.registry import entry_of as entry_of
from babeltune.method.registry import load_method as load_method
from babeltune.method.registry import make_config as make_config
from babeltune.method.registry import needs_of as needs_of
from babeltune.method.registry import trial_context as trial_context
