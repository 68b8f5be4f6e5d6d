"""The files in `clusters/`: each fits the schema of the program that reads it, and none holds a secret."""

import importlib
import json
import re
import shlex
import subprocess
from pathlib import Path

import boto3
import click
import jsonschema
import moto
import pytest
import ray
import yaml
from ray.autoscaler._private.aws.node_provider import AWSNodeProvider
from ray.autoscaler._private.commands import _bootstrap_config
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.autoscaler.tags import TAG_RAY_NODE_KIND, TAG_RAY_USER_NODE_TYPE
from ray.serve.config import AutoscalingConfig
from ray.serve.schema import ServeDeploySchema
from typer.main import get_command

from babeltune.cli import app
from babeltune.schema.cluster import read_cluster
from waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
CLUSTERS = ROOT / "clusters"
OURS = sorted([*CLUSTERS.glob("*.yaml"), CLUSTERS / "kuberay" / "inside.yaml"])
RAYS = sorted((CLUSTERS / "ray_up").glob("*.yaml"))
KUBERNETES = sorted(set((CLUSTERS / "kuberay").glob("*.yaml")) - set(OURS))
SCHEMAS = Path(__file__).parent / "schemas"
SET = {
    "BABELTUNE_HOME": "/shared",
    "BABELTUNE_RAY": "head:6379",
    "BABELTUNE_MLFLOW": "sqlite:////shared/mlflow/a-sweep/mlflow.db",
}


def name_of(path):
    return path.relative_to(CLUSTERS).as_posix()


def documents(path):
    return [one for one in yaml.safe_load_all(path.read_text(encoding="utf-8")) if one is not None]


def pinned():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if "==" in line)


@pytest.mark.parametrize("path", OURS, ids=name_of)
def test_a_cluster_file_of_ours_is_read(path):
    cluster = read_cluster(path, environ=SET)
    assert cluster.name == path.stem
    assert cluster.by_jobs == (path.stem in ("single_node", "onprem", "aws", "kuberay"))
    assert bool(cluster.nodes_within) == (path.stem in ("aws", "kuberay", "inside", "slurm")), "it begins with none"
    if cluster.by_jobs:
        assert (cluster.token_env is None) != (cluster.token_file is None)


@pytest.mark.parametrize("path", RAYS, ids=name_of)
def test_a_launcher_file_fits_rays_own_schema(path):
    (values,) = documents(path)
    schema = json.loads((Path(ray.__file__).parent / "autoscaler" / "ray-schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(values, schema)
    assert (CLUSTERS / path.name).is_file(), "a babeltune file of the same name says where it is"
    head = " ".join(values["head_start_ray_commands"])
    assert "--dashboard-host=127.0.0.1" in head
    assert "RAY_AUTH_MODE=token" in " ".join(values["docker"]["run_options"])
    assert "--autoscaling-config=~/ray_bootstrap_config.yaml" in head


@pytest.mark.parametrize("path", RAYS, ids=name_of)
def test_the_head_of_a_launcher_file_gives_no_gpu_away(path):
    (values,) = documents(path)
    types = values.get("available_node_types")
    if types:
        assert types[values["head_node_type"]]["resources"]["GPU"] == 0
    else:
        assert "--num-gpus=0" in " ".join(values["head_start_ray_commands"])
    gpus = {key for key, options in values["docker"].items() if key.endswith("run_options") and "--gpus all" in options}
    assert gpus == {"worker_run_options"}, "docker does not start where it finds none"


@pytest.mark.parametrize("path", RAYS, ids=name_of)
def test_a_file_of_variables_is_where_docker_reads_it_on_the_host(path):
    from ray.autoscaler.sdk import get_docker_host_mount_location

    (values,) = documents(path)
    synced = get_docker_host_mount_location(values["cluster_name"])
    targets = {f"{synced}{target}" for target in values.get("file_mounts", ())}
    files = [option.split()[1] for option in values["docker"]["run_options"] if option.startswith("--env-file ")]
    assert files
    for file in files:
        sentence = f"each has `~/.ray/auth_token` (the same one) and `{file}`"
        assert file in targets or sentence in (CLUSTERS / "README.md").read_text(encoding="utf-8")


def test_launcher_files_pass_rays_own_validation():
    assert RAYS
    for path in RAYS:
        prepared = prepare_config(*documents(path))
        validate_config(prepared)
        assert prepared["head_node_type"] in prepared["available_node_types"]


@pytest.mark.long
def test_ray_up_prepares_aws_and_starts_both_kinds_of_node_there(tmp_path, monkeypatch):
    """By Ray's own code, on moto's AWS: keys, network and what the instances hold; then one of each is run."""
    monkeypatch.setenv("HOME", str(tmp_path))  # the key goes into its `.ssh`
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "moto")
    (values,) = documents(CLUSTERS / "ray_up" / "aws.yaml")
    region = values["provider"]["region"]
    with moto.mock_aws():
        boto3.client("iam").create_instance_profile(InstanceProfileName="babeltune")
        config = _bootstrap_config(values, no_config_cache=True)
        kinds = config["available_node_types"]
        worker = kinds["gpu_worker"]["resources"]
        assert (worker["GPU"], worker["CPU"], kinds["head"]["resources"]["GPU"]) == (1, 4, 0)
        provider = AWSNodeProvider(config["provider"], config["cluster_name"])
        for name, kind in kinds.items():
            tags = {TAG_RAY_NODE_KIND: "head" if name == "head" else "worker", TAG_RAY_USER_NODE_TYPE: name}
            provider.create_node(kind["node_config"], tags, 1)
        places = boto3.client("ec2", region_name=region).describe_instances()["Reservations"]
    started = sorted(instance["InstanceType"] for place in places for instance in place["Instances"])
    assert started == ["g6.xlarge", "m6i.xlarge"]


@pytest.mark.parametrize("path", KUBERNETES, ids=name_of)
def test_a_manifest_has_only_fields_that_its_kind_has(path):
    for manifest in documents(path):
        check_manifest(manifest)


def check_manifest(manifest):
    """Against Kubernetes' own schema, or for what KubeRay adds ours, in which pods are Kubernetes' own."""
    kind = f"{manifest['apiVersion']}/{manifest['kind']}"
    files = [json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8")) for name in ("kubernetes", "kuberay")]
    definitions = {name: each for file in files for name, each in file["$defs"].items()}
    (name,) = (file["kinds"][kind] for file in files if kind in file["kinds"])
    jsonschema.Draft202012Validator({"$defs": definitions, "$ref": f"#/$defs/{name}"}).validate(manifest)


@pytest.mark.parametrize(
    ("file", "wrong"),
    [
        ("raycluster", lambda spec: spec["headGroupSpec"]["template"]["spec"].update(volume=[])),
        ("raycluster", lambda spec: spec["headGroupSpec"]["template"]["spec"]["containers"][0].pop("name")),
        ("raycluster", lambda spec: spec.update(autoscaling=True)),
        ("storage", lambda spec: spec.update(accessModes="ReadWriteMany")),
    ],
)
def test_a_manifest_with_a_wrong_field_is_found(file, wrong):
    (manifest,) = documents(CLUSTERS / "kuberay" / f"{file}.yaml")
    wrong(manifest["spec"])
    with pytest.raises(jsonschema.ValidationError):
        check_manifest(manifest)


def test_every_container_says_what_it_takes():
    containers = [each for path in KUBERNETES for manifest in documents(path) for each in containers_in(manifest)]
    assert containers
    for container in containers:
        assert {"requests", "limits"} <= container["resources"].keys(), container["name"]


def containers_in(value):
    if isinstance(value, dict):
        yield from value.get("containers", ())
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from containers_in(each)


def ray_clusters():
    """The RayCluster specs of all manifests."""
    for path in KUBERNETES:
        for manifest in documents(path):
            if manifest["kind"] == "RayCluster":
                yield manifest["spec"]
            elif manifest["kind"] == "RayJob":
                yield manifest["spec"]["rayClusterSpec"]
            elif manifest["kind"] == "RayService":
                yield manifest["spec"]["rayClusterConfig"]


def test_clusters_on_kubernetes_want_a_token_survive_their_head_and_scale():
    clusters = list(ray_clusters())
    assert len(clusters) == 3
    (uid,) = re.findall(r"--uid ([0-9]+)", (CLUSTERS / "Dockerfile").read_text(encoding="utf-8"))
    services = [m["metadata"]["name"] for path in KUBERNETES for m in documents(path) if m["kind"] == "Service"]
    for spec in clusters:
        assert spec["rayVersion"] == pinned()["ray"]
        assert spec["authOptions"] == {"mode": "token"}
        assert re.fullmatch(r"redis://([\w-]+):6379", spec["gcsFaultToleranceOptions"]["redisAddress"])[1] in services
        assert spec["enableInTreeAutoscaling"] is True
        assert spec["headGroupSpec"]["rayStartParams"]["num-gpus"] == "0"
        for group in spec["workerGroupSpecs"]:
            assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
            assert group["minReplicas"] < group["maxReplicas"]
        for pod in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
            inside = pod["template"]["spec"]
            assert inside["securityContext"]["fsGroup"] == inside["securityContext"]["runAsUser"] == int(uid), (
                "what it mounts may be written by the image's user"
            )
            volumes = {volume["name"] for volume in inside["volumes"]}
            for container in inside["containers"]:
                assert {mount["name"] for mount in container["volumeMounts"]} <= volumes


def test_claims_and_secrets_that_manifests_name_are_there_or_explained():
    text = (CLUSTERS / "README.md").read_text(encoding="utf-8")
    everything = [manifest for path in KUBERNETES for manifest in documents(path)]
    claims = {m["metadata"]["name"] for m in everything if m["kind"] == "PersistentVolumeClaim"}
    whole = json.dumps(everything)
    assert set(re.findall(r'"claimName": "([^"]+)"', whole)) <= claims
    secrets = set(re.findall(r'"(?:secretKeyRef|secretRef)": {"name": "([^"]+)"', whole))
    assert secrets
    assert all(f"kubectl create secret generic {secret} " in text for secret in secrets)


def test_the_rayjob_runs_a_command_of_ours():
    (job,) = documents(CLUSTERS / "kuberay" / "rayjob.yaml")
    assert parse(shlex.split(job["spec"]["entrypoint"])) == "submit"
    assert job["spec"]["backoffLimit"] > 0, "KubeRay starts it again"


def test_the_rayservice_runs_our_app_and_scales_it():
    """By Ray Serve's own schema; the app is the one that its cluster file lets build."""
    (service,) = documents(CLUSTERS / "kuberay" / "rayservice.yaml")
    config = ServeDeploySchema.model_validate(yaml.safe_load(service["spec"]["serveConfigV2"]))
    (application,) = config.applications
    module, _, builder = application.import_path.partition(":")
    file = Path(application.args["cluster"]).relative_to("/home/ray/babeltune")
    build = getattr(importlib.import_module(module), builder)
    built = build({**application.args, "cluster": str(ROOT / file)})
    (deployment,) = application.deployments
    assert deployment.name == built._bound_deployment.name
    scaling = AutoscalingConfig(**deployment.autoscaling_config)
    assert scaling.min_replicas < scaling.max_replicas
    assert scaling.target_ongoing_requests < deployment.max_ongoing_requests
    (group,) = service["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    cpus = int(group["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"])
    assert scaling.max_replicas * deployment.ray_actor_options.num_cpus <= cpus * group["maxReplicas"]
    token = read_cluster(ROOT / file, environ=SET).serve.token_env
    assert f"`{token}`" in (CLUSTERS / "README.md").read_text(encoding="utf-8")


def parse(line):
    """The command of ours that the line calls; an option that it does not have, or a file that is not here, raises."""
    commands = get_command(app).commands
    _, name, *arguments = line
    with click.Context(commands[name], info_name=name) as context:
        commands[name].parse_args(context, arguments)
    for argument in arguments:
        if argument.endswith(".yaml"):
            assert (ROOT / argument).is_file(), argument
    return name


def test_the_commands_of_the_readme_parse_and_its_files_exist():
    text = (CLUSTERS / "README.md").read_text(encoding="utf-8")
    lines = [line for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    ours = [line for line in lines if line.startswith("babeltune ")]
    assert len(ours) >= 8
    for line in ours:
        parse(shlex.split(line, comments=True))
    for path in set(re.findall(r"(?<![\w/])clusters/[\w/.-]+\.(?:yaml|sh)", "\n".join(lines))):
        assert (ROOT / path).is_file(), path
    for path in CLUSTERS.rglob("*"):
        if path.is_file() and path != CLUSTERS / "README.md":
            place = path.relative_to(CLUSTERS)
            assert any(f"`{name}" in text for name in (place.as_posix(), f"{place.parts[0]}/")), place


def test_the_compose_file_fits_its_schema_and_hangs_together():
    (values,) = documents(CLUSTERS / "mlflow" / "compose.yaml")
    jsonschema.validate(values, json.loads((SCHEMAS / "compose.json").read_text(encoding="utf-8")))
    for service in values["services"].values():
        assert set(service.get("secrets", ())) <= set(values["secrets"])
        assert set(service.get("depends_on", {})) <= set(values["services"])
        for volume in service.get("volumes", ()):
            assert volume.partition(":")[0] in values["volumes"]
    text = (CLUSTERS / "README.md").read_text(encoding="utf-8")
    assert all(secret in text for secret in values["secrets"])
    serve = (CLUSTERS / "mlflow" / "serve.sh").read_text(encoding="utf-8")
    assert set(re.findall(r'"\$secrets/(\w+)"', serve)) == set(values["services"]["mlflow"]["secrets"])
    assert "secrets=${SECRETS:-/run/secrets}" in serve
    assert "--app-name basic-auth" in serve
    assert "127.0.0.1" in values["services"]["mlflow"]["ports"][0]


def test_the_secrets_of_mlflow_lie_outside_of_the_checkout_in_every_instruction():
    place = "/.babeltune/mlflow-server"
    (values,) = documents(CLUSTERS / "mlflow" / "compose.yaml")
    for name, secret in values["secrets"].items():
        assert secret["file"] == f"${{MLFLOW_SECRETS:-${{HOME}}{place}}}/{name}"
    text = (CLUSTERS / "README.md").read_text(encoding="utf-8")
    assert f"secrets=~{place} " in text
    sources = re.findall(r"kubectl create secret .*--from-(?:env-)?file=(\S+)", text)
    assert sources
    assert all(source.startswith('"$HOME/.babeltune/') for source in sources)
    assert "otate all three" in text


def test_mlflow_on_kubernetes_is_where_the_cluster_file_looks():
    """Its script finds the secrets that are mounted and the database by the name that it knows."""
    manifests = {(m["kind"], m["metadata"]["name"]): m["spec"] for m in documents(CLUSTERS / "kuberay" / "mlflow.yaml")}
    port = manifests["Service", "mlflow"]["ports"][0]["port"]
    assert f":-http://mlflow:{port}}}" in read_cluster(CLUSTERS / "kuberay.yaml", environ={}).mlflow
    serve = (CLUSTERS / "mlflow" / "serve.sh").read_text(encoding="utf-8")
    (database,) = set(re.findall(r"@(\w+)/mlflow", serve))
    assert ("Service", database) in manifests
    for name in ("mlflow", database):
        (container,) = manifests["Deployment", name]["template"]["spec"]["containers"]
        variables = {each["name"]: each["value"] for each in container["env"]}
        mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}["secrets"]
        assert mounted in (variables.get("SECRETS"), variables.get("POSTGRES_PASSWORD_FILE", "").rpartition("/")[0])
        labels = manifests["Deployment", name]["template"]["metadata"]["labels"]
        assert manifests["Service", name]["selector"] == labels


INSTRUCTIONS = {"FROM", "ARG", "RUN", "COPY", "WORKDIR", "USER", "ENV", "EXPOSE", "CMD"}


@pytest.mark.parametrize(("file", "context"), [("Dockerfile", ROOT), ("mlflow/Dockerfile", CLUSTERS / "mlflow")])
def test_an_image_copies_what_exists(file, context):
    text = (CLUSTERS / file).read_text(encoding="utf-8")
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]
    assert {line.split()[0] for line in lines} <= INSTRUCTIONS
    for line in lines:
        word, *arguments = line.split()
        if word == "COPY":
            assert all((context / source).exists() for source in arguments[:-1]), line
    assert not re.search(r":latest\b", text)


@pytest.mark.parametrize("script", ["slurm.sh", "pin.sh", "tls.sh", "mlflow/serve.sh"])
def test_a_shell_script_parses_and_stops_at_errors(script):
    path = CLUSTERS / script
    first, *_ = path.read_text(encoding="utf-8").splitlines()
    shell = Path(first.removeprefix("#!")).name
    done = subprocess.run([shell, "-n", str(path)], capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^set -e", path.read_text(encoding="utf-8"), re.MULTILINE)


def test_the_slurm_script_starts_a_head_and_its_workers_with_a_token():
    text = (CLUSTERS / "slurm.sh").read_text(encoding="utf-8")
    lines = text.splitlines()
    directives = [index for index, line in enumerate(lines) if line.startswith("#SBATCH")]
    commands = [index for index, line in enumerate(lines) if line and not line.startswith("#")]
    assert directives
    assert directives[-1] < commands[0], "Slurm reads no directive after the first command"
    assert all(re.fullmatch(r"#SBATCH (--[a-z-]+(=\S+)?|hetjob)", lines[index]) for index in directives)
    head = text.partition("#SBATCH hetjob")[0]
    assert "gpu" not in re.sub("^# .*", "", head, flags=re.MULTILINE), "the driver is not where they are"
    assert "RAY_AUTH_MODE=token" in text
    assert "ray start --head --block" in text
    assert '--address="$address:$port"' in text
    assert "--cluster clusters/slurm.yaml" in text
    assert "--requeue" in head


@pytest.mark.parametrize("address", ["", "https://mlflow.example.com"])
def test_each_sweep_on_slurm_has_an_mlflow_database_of_its_own(address):
    text = (CLUSTERS / "slurm.sh").read_text(encoding="utf-8")
    (lines,) = re.findall(r"^name=.*?^export BABELTUNE_MLFLOW=.*?$", text, re.MULTILINE | re.DOTALL)
    environment = {"PATH": "/usr/bin:/bin", "BABELTUNE_HOME": "/shared", "BABELTUNE_MLFLOW": address}

    def database(*arguments):
        command = ["bash", "-c", f'set -euo pipefail; {lines}; printf %s "$BABELTUNE_MLFLOW"', "slurm.sh", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    one, again, another = (database("spaces/a.yaml", "--trials", number) for number in ("8", "8", "9"))
    assert one == again, "the job that Slurm runs again"
    if address:
        assert one == another == address
    else:
        assert one != another
        assert re.fullmatch(r"sqlite:////shared/mlflow/a-[0-9]+/mlflow\.db", one)


def test_the_slurm_script_takes_an_address_that_other_nodes_can_reach(tmp_path):
    text = (CLUSTERS / "slurm.sh").read_text(encoding="utf-8")
    (command,) = re.findall(r"^address=\$\(.*?\)\n(?=port=)", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "hostname").write_text('#!/bin/sh\ncat "$0$1"\n')
    (tmp_path / "hostname").chmod(0o755)
    (tmp_path / "hostname--ip-address").write_text("fe80::1 127.0.1.1\n")
    (tmp_path / "hostname--all-ip-addresses").write_text("10.0.0.5 172.17.0.1 \n")
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    script = f'set -euo pipefail; {command.strip()}; printf %s "$address"'
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "10.0.0.5"


SUSPECT = re.compile(r"(?i)(password|passwd|secret|token|api_?key)[\"']?\s*[:=]\s*[\"']?(?![\s$({/~<\[]|token\b)(\S+)")
HARMLESS = re.compile(r"""^"?(/|~|false$|[A-Z_]+$|babeltune|\{|valueFrom|\$)""")
LONG_HEX = re.compile(r"\b[0-9a-f]{24,}\b|AKIA[0-9A-Z]{16}|-----BEGIN")


@pytest.mark.parametrize("path", sorted(p for p in CLUSTERS.rglob("*") if p.is_file()), ids=name_of)
def test_no_file_holds_a_secret(path):
    text = re.sub(r"\bsha256:[0-9a-f]{64}\b", "", path.read_text(encoding="utf-8"))
    assert not LONG_HEX.search(text)
    for match in SUSPECT.finditer(text):
        assert HARMLESS.match(match[2]), match[0]
    assert not re.search(r"://[^/\s:@$]+:[^/\s@$]+@", text), "a password in an address"
