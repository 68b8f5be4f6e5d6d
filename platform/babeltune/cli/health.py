"""The command that looks whether a sweep could run: doctor."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer
from rich.markup import escape

from babeltune.cli.common import ClusterFile, Json, any_cluster, out, say
from babeltune.cli.program import app

if TYPE_CHECKING:
    from babeltune.remote.doctor import Finding
    from babeltune.schema.cluster import Cluster


@app.command()
def doctor(cluster: ClusterFile = None, as_json: Json = False) -> None:
    """Check whether a sweep can run here or on the cluster. Each line is good, or says what to do."""
    from babeltune.remote.doctor import examine

    chosen = any_cluster(cluster)
    findings = examine_there(chosen, cluster or "") if chosen.by_jobs else examine(chosen)
    say(findings, as_json, lambda: show(findings))
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)


def show(findings: list[Finding]) -> None:
    for finding in findings:
        mark = "[green]ok[/]   " if finding.ok else "[bold red]wrong[/]"
        out.print(f"{mark} {finding.name}: {escape(finding.text)}", highlight=False, soft_wrap=True)


def examine_there(cluster: Cluster, file: str) -> list[Finding]:
    """The findings here, whether the dashboard takes the token, and the findings of the head."""
    from babeltune.cli.forward import ClusterHead
    from babeltune.errors import ClusterError, SpecError
    from babeltune.remote.doctor import Finding, installed, itself, needed, packages, python

    findings = [itself(), python(), *packages(installed(), needed())]
    try:
        head = ClusterHead(cluster, file)
    except (ClusterError, SpecError) as error:
        return [*findings, Finding("address", False, str(error))]
    findings.append(Finding("address", True, f"{cluster.place}, Ray {head.jobs.version}"))
    if head.jobs.open:
        todo = "is not asked for: anybody can run programs there; start Ray with RAY_AUTH_MODE=token"
        findings.append(Finding("token", False, todo))
    else:
        findings.append(Finding("token", True, "is accepted"))
    _, answer, words = head.ask("doctor", "--json")
    if not answer:
        last = (words.strip().splitlines() or ["it said nothing"])[-1]
        todo = "run `ray start` there with an environment on its PATH that has babeltune's packages"
        return [*findings, Finding("head", False, f"cannot run babeltune: {last}; {todo}")]
    checks = json.loads(answer)
    versions = {one["name"]: one["text"] for one in checks if one["ok"]}
    fitting = [one for one in packages(versions, needed()) if one.name in versions]
    unfit = {one.name: one for one in fitting if not one.ok}
    for one in checks:
        finding = unfit.get(one["name"]) or Finding(**one)
        findings.append(Finding(f"head: {finding.name}", finding.ok, finding.text))
    return findings
