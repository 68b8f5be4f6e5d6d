"""From a user's files to a sweep file that `babeltune plan` accepts: `babeltune init`."""
