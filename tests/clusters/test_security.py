"""The files in `clusters/` trust little: images by digest, packages by hash, pods without rights, closed networks."""

import re
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from processes import ended

ROOT = Path(__file__).parents[2]
CLUSTERS = ROOT / "clusters"
MANIFESTS = sorted(set((CLUSTERS / "kuberay").glob("*.yaml")) - {CLUSTERS / "kuberay" / "inside.yaml"})
IMAGES = [CLUSTERS / "Dockerfile", CLUSTERS / "mlflow" / "Dockerfile"]
BY_DIGEST = re.compile(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}")
NEW = "sha256:" + "0" * 64
LOCKED = (
    (ROOT / "requirements.txt", "babeltune", ("quickstart", "translation", "s3", "serve")),
    (CLUSTERS / "mlflow" / "requirements.txt", "mlflow", ("auth",)),
)
TLS = {"RAY_USE_TLS", "RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT"}


def documents(path):
    return [one for one in yaml.safe_load_all(path.read_text(encoding="utf-8")) if one is not None]


def values_of(key, value):
    """What stands under this key, anywhere in a document."""
    if isinstance(value, dict):
        yield from ([value[key]] if key in value else [])
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from values_of(key, each)


def pods():
    """Every pod of our manifests: its file, its template. There are some."""
    pairs = []
    for path in MANIFESTS:
        for manifest in documents(path):
            templates = [*values_of("template", manifest), *values_of("submitterPodTemplate", manifest)]
            pairs += [(path.stem, template) for template in templates]
    assert pairs
    return pairs


def containers(template):
    return [each for key in ("initContainers", "containers") for each in template["spec"].get(key, ())]


# Images


def images_without_digest(paths):
    """The images that these files name in any other way than NAME:TAG@sha256:DIGEST."""
    images = []
    for path in paths:
        if path.suffix == ".yaml":
            images += [image for document in documents(path) for image in values_of("image", document)]
        else:
            images += re.findall(r"^ARG BASE=(\S*)", path.read_text(encoding="utf-8"), re.MULTILINE)
            assert re.findall(r"^FROM (\S+)", path.read_text(encoding="utf-8"), re.MULTILINE) == ["${BASE}"]
    assert images
    return [image for image in images if not BY_DIGEST.fullmatch(image)]


def files_with_images():
    launchers = sorted((CLUSTERS / "ray_up").glob("*.yaml"))
    manifests = [path for path in MANIFESTS if "image:" in path.read_text(encoding="utf-8")]
    return [*IMAGES, CLUSTERS / "mlflow" / "compose.yaml", *launchers, *manifests]


def test_every_image_is_named_by_its_digest():
    assert len(files_with_images()) == 10
    assert not images_without_digest(files_with_images())


@pytest.mark.parametrize("image", ["redis:7.4", "redis", "redis:latest@sha256:abc", f"redis@{NEW}"])
def test_a_manifest_with_a_tag_alone_is_found(image, tmp_path):
    path = tmp_path / "redis.yaml"
    text = (CLUSTERS / "kuberay" / "redis.yaml").read_text(encoding="utf-8")
    path.write_text(re.sub(r"image: \S+", f"image: {image}", text))
    assert images_without_digest([path]) == [image]


@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.parent.name)
def test_a_base_without_a_digest_is_not_built_on(path):
    (check,) = re.findall(r"^RUN (case .* esac)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    for base, code in (("python:3.12-slim", 2), (f"python:3.12-slim@{NEW}", 0)):
        done = subprocess.run(["sh", "-c", check], env={"BASE": base}, capture_output=True, text=True, check=False)
        assert done.returncode == code
        assert ("add its digest" in done.stderr) == bool(code)


DOCKER = """#!/bin/sh
# stands for: docker buildx imagetools inspect --format FORMAT NAME
[ "$1 $2 $3" = "buildx imagetools inspect" ] || exit 64
case $6 in *{unknown}*) echo "no such image: $6" >&2; exit 1 ;; esac
printf 'sha256:%s\\n' "$(printf %s "$6" | sha256sum | cut -d' ' -f1)"
"""


@pytest.fixture
def pinned(tmp_path):
    """Pins a copy of our files by a registry that does not know images of this name: what was said, and the copy."""
    copy = tmp_path / "clusters"
    shutil.copytree(CLUSTERS, copy)
    program = tmp_path / "bin" / "docker"
    program.parent.mkdir()

    def pin(unknown="none"):
        program.write_text(DOCKER.replace("{unknown}", unknown))
        program.chmod(0o755)
        return ended("sh", copy / "pin.sh", env={"PATH": f"{program.parent}:/usr/bin:/bin"}), copy

    return pin


def test_pinning_writes_the_digest_that_the_registry_names_into_every_file(pinned):
    done, copy = pinned()
    assert done.returncode == 0, done.stderr
    files = [copy / path.relative_to(CLUSTERS) for path in files_with_images()]
    texts = {path: path.read_text(encoding="utf-8") for path in files}
    assert not images_without_digest(files)
    assert not [path for path, text in texts.items() if NEW in text]
    assert len(done.stdout.splitlines()) == 11
    assert pinned()[0].returncode == 0
    assert {path: path.read_text(encoding="utf-8") for path in files} == texts, "the same images have the same digests"
    for path in MANIFESTS:  # nothing else changed
        before = re.sub(r"@sha256:\w+", "", path.read_text(encoding="utf-8"))
        assert re.sub(r"@sha256:\w+", "", (copy / "kuberay" / path.name).read_text(encoding="utf-8")) == before


def test_pinning_an_image_that_the_registry_lacks_fails_and_leaves_its_file(pinned):
    done, copy = pinned(unknown="redis")
    assert done.returncode != 0
    assert "no such image: redis:7.4" in done.stderr
    redis = Path("kuberay/redis.yaml")
    assert (copy / redis).read_text() == (CLUSTERS / redis).read_text()


# Packages


def locked(path):
    """The versions and the number of hashes of a file of requirements."""
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return {canonicalize_name(line[0].partition("==")[0]): (line[0].partition("==")[2], line[1:]) for line in lines}


@pytest.mark.parametrize(("path", "name", "extras"), LOCKED, ids=lambda value: getattr(value, "parent", Path()).name)
def test_every_package_of_an_image_has_a_version_and_hashes(path, name, extras):
    packages = locked(path)
    assert len(packages) > 80
    for version, hashes in packages.values():
        assert version
        assert hashes
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", each) for each in hashes)


@pytest.mark.parametrize(("path", "name", "extras"), LOCKED, ids=lambda value: getattr(value, "parent", Path()).name)
def test_the_versions_of_an_image_are_those_of_the_constraints(path, name, extras):
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    constraints = {canonicalize_name(line.split("==")[0]): line.split("==")[1] for line in lines if "==" in line}
    other = {
        package: version
        for package, (version, _) in locked(path).items()
        if constraints.get(package, version).split(";")[0].strip() != version
    }
    assert not other, "run `make requirements`"


@pytest.mark.parametrize(("path", "name", "extras"), LOCKED, ids=lambda value: getattr(value, "parent", Path()).name)
def test_the_packages_of_an_image_need_no_other(path, name, extras):
    """Each requirement of each package is there, as far as the package is installed here to say what it requires."""
    packages = locked(path)
    linux = {"python_version": "3.12", "python_full_version": "3.12.0", "sys_platform": "linux"}
    needed = {(name, ("", *extras))}
    visits = set()
    while needed:
        package, features = needed.pop()
        if (package, features) in visits:
            continue
        visits.add((package, features))
        try:
            lines = requires(package) or []
        except PackageNotFoundError:
            continue
        for requirement in map(Requirement, lines):
            if requirement.marker is None or any(requirement.marker.evaluate({**linux, "extra": e}) for e in features):
                needed.add((canonicalize_name(requirement.name), ("", *sorted(requirement.extras))))
    missing = {package for package, _ in visits} - {name, "babeltune"} - packages.keys()
    assert not missing, "run `make requirements`"
    assert len(visits) > 50


@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.parent.name)
def test_an_image_installs_nothing_without_a_hash_and_runs_as_a_user(path):
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    installs = re.findall(r"pip install.*?(?=&&|\n)", text)
    assert installs
    assert all("--require-hashes" in each or "--no-deps" in each for each in installs)
    users = re.findall(r"^USER (\S+)", text, re.MULTILINE)
    assert users[-1] == "1000", "Kubernetes knows by a number alone that it is not root"
    assert "--uid 1000" in text


# Pods


def test_every_pod_runs_as_a_user_under_a_seccomp_profile():
    pairs = list(pods())
    assert len(pairs) == 10
    for file, template in pairs:
        context = template["spec"]["securityContext"]
        assert context["runAsNonRoot"] is True, file
        assert context["runAsUser"] > 0, file
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}, file


def test_every_container_gives_up_its_capabilities_and_gains_no_rights():
    checked = [each["securityContext"] for _, template in pods() for each in containers(template)]
    for path in MANIFESTS:
        for options in (each for document in documents(path) for each in values_of("autoscalerOptions", document)):
            checked.append(options["securityContext"])
    assert len(checked) == 19
    for context in checked:
        assert context == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def test_no_pod_touches_its_machine():
    for file, template in pods():
        spec = template["spec"]
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys(), file
        assert not [volume for volume in spec.get("volumes", ()) if "hostPath" in volume], file
        assert not [port for each in containers(template) for port in each.get("ports", ()) if "hostPort" in port], file


def test_only_heads_which_scale_their_cluster_may_speak_to_kubernetes():
    with_token = [
        [each["name"] for each in template["spec"]["containers"]]
        for _, template in pods()
        if template["spec"].get("automountServiceAccountToken") is not False
    ]
    assert with_token == [["ray-head"]] * 3


def test_containers_of_docker_are_not_root_and_gain_no_rights():
    (compose,) = documents(CLUSTERS / "mlflow" / "compose.yaml")
    for service in compose["services"].values():
        assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", service["user"])
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
    launchers = sorted((CLUSTERS / "ray_up").glob("*.yaml"))
    assert launchers
    for path in launchers:
        (launcher,) = documents(path)
        assert "--security-opt no-new-privileges" in launcher["docker"]["run_options"]


# Networks


def policies():
    """The network policies by name. There are some."""
    specs = {each["metadata"]["name"]: each["spec"] for each in documents(CLUSTERS / "kuberay" / "network.yaml")}
    assert specs
    return specs


def labels_of_pods():
    return {tuple(sorted(template["metadata"]["labels"].items())) for _, template in pods()}


def test_every_pod_is_behind_a_policy_for_both_directions():
    selected = [tuple(sorted(spec["podSelector"]["matchLabels"].items())) for spec in policies().values()]
    assert set(selected) == labels_of_pods()
    assert len(selected) == len(set(selected))
    for spec in policies().values():
        assert spec["policyTypes"] == ["Ingress", "Egress"]


def test_a_policy_names_who_may_come_and_by_which_port():
    apps = {dict(labels)["app"] for labels in labels_of_pods()}
    for name, spec in policies().items():
        for rule in spec["ingress"]:
            for peer in rule["from"]:
                app = peer["podSelector"]["matchLabels"].get("app")
                assert app in {*apps, "babeltune-client"} or (name == "babeltune-ray" and "namespaceSelector" in peer)
                assert rule.get("ports") or app == "babeltune-ray", "Ray alone chooses its ports"


def test_databases_speak_to_nobody_and_hear_their_one_client():
    for name, client in (("babeltune-redis", "babeltune-ray"), ("babeltune-postgres", "babeltune-mlflow")):
        spec = policies()[name]
        assert spec["egress"] == []
        (rule,) = spec["ingress"]
        assert rule["from"] == [{"podSelector": {"matchLabels": {"app": client}}}]


def test_the_way_out_is_to_names_our_own_pods_and_encrypted_ports():
    for spec in policies().values():
        for rule in spec["egress"]:
            for peer in rule["to"]:
                ports = {each["port"] for each in rule.get("ports", ())}
                if "ipBlock" in peer:
                    assert peer["ipBlock"]["except"] == ["169.254.0.0/16"], "not the metadata of the machine"
                    assert ports <= {443, 6443}
                elif "namespaceSelector" in peer:
                    assert ports == {53}


# Connections between nodes


def variables(container):
    return {each["name"]: each["value"] for each in container.get("env", ()) if "value" in each}


def test_rays_processes_on_kubernetes_want_certificates():
    paths = {"RAY_USE_TLS": "1", "RAY_TLS_SERVER_CERT": "/etc/ray_tls/tls.crt"}
    paths |= {"RAY_TLS_SERVER_KEY": "/etc/ray_tls/tls.key", "RAY_TLS_CA_CERT": "/etc/ray_tls/ca.crt"}
    checked = 0
    for file, template in pods():
        for container in template["spec"]["containers"]:
            if container["name"] in ("ray-head", "ray-worker"):
                assert variables(container).items() >= paths.items(), file
                assert {"name": "tls", "mountPath": "/etc/ray_tls", "readOnly": True} in container["volumeMounts"]
                checked += 1
    for options in (o for p in MANIFESTS for d in documents(p) for o in values_of("autoscalerOptions", d)):
        assert variables(options) == paths
        assert options["volumeMounts"] == [{"name": "tls", "mountPath": "/etc/ray_tls", "readOnly": True}]
        checked += 1
    assert checked == 9


def test_only_the_first_container_of_a_pod_sees_the_key_of_the_authority():
    for _, template in pods():
        for container in template["spec"]["containers"]:
            assert "authority" not in [mount["name"] for mount in container.get("volumeMounts", ())]
        for container in template["spec"].get("initContainers", ()):
            command = container["command"]
            assert command[0] == "sh"
            assert (CLUSTERS / Path(command[1]).name).is_file()
            assert command[1] == "/home/ray/babeltune/clusters/tls.sh", "where the image has it"
            assert container["args"][0] == "$(POD_IP)"


def test_machines_of_ones_own_want_certificates():
    (launcher,) = documents(CLUSTERS / "ray_up" / "onprem.yaml")
    options = launcher["docker"]["run_options"]
    variables = {option.removeprefix("--env ").partition("=")[0] for option in options if option.startswith("--env ")}
    assert variables >= TLS
    assert "--volume /etc/babeltune/tls:/etc/ray_tls:ro" in options
    text = (CLUSTERS / "README.md").read_text(encoding="utf-8")
    assert "sh clusters/tls.sh" in text
    assert "/etc/babeltune/tls" in text


def test_certificates_are_for_the_addresses_and_names_that_were_given(tmp_path):
    script, ca, node = CLUSTERS / "tls.sh", tmp_path / "ca", tmp_path / "node"
    names = ["192.0.2.11", "babeltune-head-svc.default.svc.cluster.local", "fd00::11"]
    subprocess.run(["sh", str(script), str(ca), str(node), *names], check=True, capture_output=True)
    before = (ca / "ca.crt").read_bytes()
    subprocess.run(["sh", str(script), str(ca), str(tmp_path / "other"), "192.0.2.12"], check=True, capture_output=True)
    assert (ca / "ca.crt").read_bytes() == before == (node / "ca.crt").read_bytes()
    authority = x509.load_pem_x509_certificate(before)
    certificate = x509.load_pem_x509_certificate((node / "tls.crt").read_bytes())
    certificate.verify_directly_issued_by(authority)
    alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {str(name.value) for name in alternatives} == {"localhost", "127.0.0.1", *names}
    assert sorted(path.name for path in node.iterdir()) == ["ca.crt", "tls.crt", "tls.key"]
    assert (node / "tls.key").stat().st_mode & 0o077 == 0
    assert (ca / "ca.key").stat().st_mode & 0o077 == 0
