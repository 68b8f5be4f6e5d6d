"""Distributions besides babeltune that methods come from: what a resume compares of them, and what a cluster gets."""

import os
import shutil
import sys
import zipfile
from importlib.metadata import distribution, entry_points
from pathlib import Path

import pytest
from packaging.tags import sys_tags

from babeltune.errors import ClusterError, MethodError, SweepError
from babeltune.method import GROUP, load_method
from babeltune.method.plugins import needs_beside, plugins
from babeltune.planning.space import methods_used
from babeltune.planning.sweep_file import read_sweep
from babeltune.planning.warnings import about_plugins
from babeltune.remote.wheel import build_plugins
from babeltune.sweep.state.provenance import check_unchanged, deciding_facts
from babeltune.testing import CHECKS
from processes import ended
from toy_methods import TwoViews, combined_beside
from toy_methods import install as install_methods
from toy_plugin import HOWS, METHOD, NAME, PACKAGE, code_in, forget, importable, install, make_source

pytestmark = pytest.mark.slow


@pytest.fixture(params=HOWS)
def how(request):
    return request.param


@pytest.fixture(scope="module")
def installation(tmp_path_factory):
    """The plugin, installed in this way: its source tree and the target folder. It is made once, and then copied."""
    originals = {}

    def make(how, place):
        if how not in originals:
            originals[how] = tmp_path_factory.mktemp(how)
            install(make_source(originals[how] / "source"), originals[how] / "target", how)
        shutil.copytree(originals[how], place, dirs_exist_ok=True)
        for path in [*(place / "target").glob("*.pth"), *(place / "target").glob("*.dist-info/direct_url.json")]:
            path.write_text(path.read_text().replace(str(originals[how]), str(place)))
        return place / "source", place / "target"

    return make


@pytest.fixture
def plugin(how, installation, tmp_path):
    """The folder of the package that runs, the plugin being installed in this way."""
    source, target = installation(how, tmp_path)
    with importable(target):
        yield code_in(source, target)


def code():
    return deciding_facts(["simcse", "lealla"])["code"]


def test_the_code_of_a_plugin_counts_however_it_is_installed(plugin):
    before = code()
    assert set(before) == {"babeltune", NAME}
    assert load_method("simcse").name == "simcse"
    assert code() == before, "what Python compiles does not count"
    for name, text in (("views.py", METHOD + "\n"), ("temperature.txt", "0.1"), ("__init__.py", "A = 1\n")):
        content = (plugin / name).read_text()
        (plugin / name).write_text(text)
        assert code()[NAME] != before[NAME], name
        assert code()["babeltune"] == before["babeltune"]
        (plugin / name).write_text(content)
    assert code() == before
    assert set(deciding_facts(["lealla"])["code"]) == {"babeltune"}, "a sweep that cannot propose it does not ask"


def test_a_plugin_has_one_digest_in_every_way_of_installing_it(installation, tmp_path):
    digests = set()
    for each in HOWS:
        _, target = installation(each, tmp_path / each)
        with importable(target):
            digests.add(code()[NAME])
    assert len(digests) == 1


@pytest.mark.parametrize("how", ["installed"])
def test_another_class_under_the_name_of_a_method_is_other_code(plugin):
    before = code()[NAME]
    names = plugin.parent / "simcse_methods-1.0.dist-info" / "entry_points.txt"
    names.write_text(names.read_text().replace(":SimCse", ":Other"))
    forget()
    assert code()[NAME] != before


@pytest.mark.parametrize("how", ["installed", "beside"])
def test_a_resume_with_other_code_of_a_plugin_is_refused_and_shown(plugin, copied):
    _, folder, _ = copied
    check_unchanged(folder, deciding_facts(["simcse"]), accept=True)
    (plugin / "temperature.txt").write_text("0.1")
    with pytest.raises(SweepError, match=rf"\n  code\.{NAME}: \w+… → \w+…\n.*--accept-changes"):
        check_unchanged(folder, deciding_facts(["simcse"]), accept=False)
    check_unchanged(folder, deciding_facts(["simcse"]), accept=True)
    check_unchanged(folder, deciding_facts(["simcse"]), accept=False)


def test_a_sweep_uses_its_methods_their_choices_and_what_combined_holds(tiny_file, monkeypatch):
    def used(*assignments):
        return set(methods_used(read_sweep(tiny_file, assignments=assignments)))

    assert used() == {"soft_contrastive"}
    choice = "parameters={method: {choice: [lealla, soft_contrastive]}}"
    assert used(choice, "teacher.target_side=copy_anchor") == {"lealla", "soft_contrastive"}
    combined = combined_beside(monkeypatch, TwoViews)
    others = [entry for entry in entry_points(group=GROUP) if entry.name != "combined"]
    install_methods(monkeypatch, combined, TwoViews, beside=others)
    fixed = ("method=combined", "config={soft_contrastive: 1.0, lealla: 0.0}")
    assert used(*fixed, "parameters={}") == {"combined", "soft_contrastive"}
    searched = "parameters={two_views: {float: [0.0, 1.0]}}"
    assert used(*fixed, searched) == {"combined", "soft_contrastive", "two_views"}


def run_tests_of_the_plugin(source, target, *selection):
    """pytest, as it runs in the folder of the plugin's source tree."""
    path = os.pathsep.join([str(target), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *selection, "tests")
    return ended(*command, cwd=source, env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"})


@pytest.mark.parametrize(
    ("selection", "passed"), [(("-k", "keeps"), len(CHECKS)), pytest.param((), len(CHECKS) + 1, marks=pytest.mark.long)]
)
def test_a_plugin_runs_the_contract_in_its_own_tests(installation, tmp_path, selection, passed):
    done = run_tests_of_the_plugin(*installation("beside", tmp_path), *selection)
    assert done.returncode == 0, done.stdout
    assert f"{passed} passed" in done.stdout


@pytest.mark.long
def test_a_plugin_that_breaks_the_contract_fails_its_tests_with_the_reason(installation, tmp_path):
    source, target = installation("beside", tmp_path)
    views = target / PACKAGE / "views.py"
    views.write_text(views.read_text().replace("/ batch.total)", "/ batch.total, {'log': first.sum()})"))
    done = run_tests_of_the_plugin(source, target, "-k", "keeps and gradients")
    assert done.returncode == 1, done.stdout
    assert "simcse: the logged value 'log' has a gradient; detach it" in done.stdout


# --- What a cluster gets ---------------------------------------------------------------------------------------------


def shipped(folder, name=NAME):
    (wheel,) = build_plugins(folder, [name])
    with zipfile.ZipFile(wheel) as archive:
        return wheel, {each: archive.read(each) for each in archive.namelist()}


def test_a_wheel_of_a_plugin_holds_what_runs_and_names_no_dependency(plugin, tmp_path):
    (plugin / "temperature.txt").write_text("0.07")
    load_method("simcse")
    wheel, files = shipped(tmp_path)
    info = "simcse_methods-1.0.dist-info"
    expected = {f"{PACKAGE}/{name}" for name in ("__init__.py", "views.py", "temperature.txt")}
    expected |= {f"{info}/{name}" for name in ("METADATA", "WHEEL", "entry_points.txt", "RECORD")}
    assert set(files) == expected
    assert files[f"{PACKAGE}/temperature.txt"] == b"0.07"
    assert b"Requires-Dist" not in files[f"{info}/METADATA"]
    assert wheel.name.startswith("simcse_methods-1.0-0")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert shipped(tmp_path)[0].name == wheel.name
    (plugin / "temperature.txt").write_text("0.08")
    assert shipped(tmp_path)[0].name != wheel.name, "Ray would take it for the same"


def test_a_wheel_that_a_cluster_installs_has_the_code_that_runs_here(plugin, tmp_path):
    before = code()
    wheel, _ = shipped(tmp_path)
    folder = tmp_path / "there"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    shutil.rmtree(plugin)
    with importable(folder):
        assert code() == before
        assert load_method("simcse").name == "simcse"


@pytest.mark.parametrize("how", ["installed"])
@pytest.mark.parametrize("name", ["views.py", "temperature.txt"])
def test_a_plugin_that_lacks_a_file_is_refused_with_its_name(plugin, tmp_path, name):
    (plugin / name).unlink()
    with pytest.raises(MethodError, match=rf"simcse-methods 1.0 lacks {PACKAGE}/{name}, .*; install it again"):
        shipped(tmp_path)


@pytest.mark.parametrize("how", ["editable"])
@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"backend": "no_such_backend"}, ClusterError, "No module named 'no_such_backend'; .*install what"),
        ({"text": "[build"}, MethodError, "its pyproject.toml is no TOML"),
        ({"text": None}, MethodError, "has no pyproject.toml; add one, or install a wheel"),
        ({"packs": "other"}, MethodError, "holds simcse_methods.views, so .*correct what its source tree packs"),
    ],
)
def test_a_source_tree_that_gives_no_wheel_is_refused_with_the_reason(plugin, tmp_path, change, kind, words):
    project = plugin.parent / "pyproject.toml"
    text = project.read_text()
    if "backend" in change:
        text = text.replace('"hatchling.build"', f'"{change["backend"]}"')
    if "packs" in change:
        (plugin.parent / "other").mkdir()
        (plugin.parent / "other" / "__init__.py").touch()
        text = text.replace('packages = ["simcse_methods"]', 'packages = ["other"]')
    text = change.get("text", text)
    project.unlink() if text is None else project.write_text(text)
    with pytest.raises(kind, match=words) as caught:
        shipped(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("how", ["editable"])
def test_a_source_tree_that_is_gone_is_said(plugin, tmp_path):
    shutil.rmtree(plugin.parent)
    with pytest.raises(MethodError, match=r"is installed from .*source, which is gone; install it again"):
        shipped(tmp_path)


def test_a_module_that_a_plugin_imports_from_beside_it_counts_and_is_shipped(plugin, how, tmp_path):
    (plugin.parent / "beside_views.py").write_text("import torch\n")
    (plugin / "views.py").write_text("import beside_views, torch, babeltune.method\n" + METHOD)
    forget()
    if how == "installed":  # a RECORD names all that its wheel had
        record = plugin.parent / "simcse_methods-1.0.dist-info" / "RECORD"
        record.write_text(record.read_text() + "beside_views.py,,\n")
    if how == "editable":
        project = plugin.parent / "pyproject.toml"
        project.write_text(project.read_text() + 'force-include = {"beside_views.py" = "beside_views.py"}\n')
    before = code()
    assert "beside_views.py" in shipped(tmp_path)[1]
    assert not any(name.startswith(("torch", "babeltune")) for name in shipped(tmp_path)[1])
    (plugin.parent / "beside_views.py").write_text("import torch as t\n")
    assert code()[NAME] != before[NAME]


@pytest.mark.parametrize("how", ["installed"])
def test_a_file_that_runs_and_that_no_record_names_counts_and_is_not_left_out(plugin, tmp_path):
    before = code()
    (plugin / "later.py").touch()
    assert code()[NAME] != before[NAME]
    with pytest.raises(MethodError, match=r"runs here with .*later.py, and a wheel of it would have no such file"):
        shipped(tmp_path)


@pytest.mark.parametrize("how", ["installed", "editable"])
def test_a_copy_that_lies_before_the_installed_code_counts_and_is_not_mistaken(plugin, tmp_path):
    before = code()
    shutil.copytree(plugin, tmp_path / "first" / PACKAGE)
    (tmp_path / "first" / PACKAGE / "temperature.txt").write_text("0.2")
    # undone here: after the plugin's own end it would bring the plugin's path back for later tests
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path / "first")
        forget()
        assert code()[NAME] != before[NAME]
        with pytest.raises(MethodError, match=r"first/simcse_methods/.*, and a wheel of it would have another file"):
            shipped(tmp_path)


def test_a_plugin_that_is_not_installed_here_is_said(tmp_path):
    with pytest.raises(MethodError, match="methods of the distribution no-such-plugin, which is not installed here"):
        build_plugins(tmp_path, ["no-such-plugin"])


@pytest.mark.parametrize("how", ["installed", "beside"])
def test_a_compiled_plugin_says_for_which_machines_it_is(plugin, tmp_path, how):
    (plugin / "fast.so").write_bytes(b"\x7fELF")
    expected = str(next(sys_tags()))
    if how == "installed":
        info = plugin.parent / "simcse_methods-1.0.dist-info"
        with (info / "RECORD").open("a") as record:
            record.write(f"{PACKAGE}/fast.so,,\n")
        (info / "WHEEL").write_text("Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp311-cp311-win_amd64\n")
        expected = "cp311-cp311-win_amd64"
    wheel, files = shipped(tmp_path)
    assert wheel.name.endswith(f"-{expected}.whl")
    assert f"{PACKAGE}/fast.so" in files


def test_the_plugin_of_the_fault_tests_is_one_too(tmp_path):
    here = Path(__file__).parents[1]
    before = list(sys.path)
    sys.path[:0] = [str(here), str(here / "chaos")]
    try:
        forget()
        assert set(plugins(["faulty", "lealla"])) == {"faulty"}
        assert distribution("faulty").read_text("RECORD") is None
        _, files = shipped(tmp_path, "faulty")
    finally:
        sys.path[:] = before
        forget()
    assert "chaos/faulty.py" in files
    assert not any(name.startswith("chaos/faulty-1.dist-info") for name in files)


@pytest.mark.parametrize("how", [how for how in HOWS if how != "beside"], indirect=True)  # its metadata names none
@pytest.mark.usefixtures("plugin")
def test_a_job_says_which_dependencies_of_a_plugin_it_does_not_ship():
    assert needs_beside(distribution(NAME)) == ["a-package-that-no-index-has"], "torch is one of babeltune's"
    (words,) = about_plugins([NAME])
    assert words.startswith("the job ships distribution simcse-methods 1.0, not what it depends on: a-package-that-no-")
    assert not list(about_plugins(["babeltune", "not-installed"]))


@pytest.mark.parametrize("how", HOWS[:1], indirect=True)
@pytest.mark.usefixtures("plugin")
def test_plan_says_it_for_a_cluster_that_takes_jobs_alone(tiny_file, tmp_path, command):
    file = tmp_path / "there.yaml"
    file.write_text(f"address: http://localhost:1\nstorage: {tmp_path}\nmlflow: http://localhost:2\n")
    arguments = ["plan", tiny_file, "--set", "method=simcse", "--set", "config={}", "--set", "parameters={}"]
    code, _, err = command(*arguments, "--cluster", file)
    assert code == 0, err
    assert "a-package-that-no-index-has" in err
    assert "a-package-that-no-index-has" not in command(*arguments)[2]
