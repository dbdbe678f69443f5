"""The `pagewatch` command: every verb is one call into a room below. Imports wait for the verb, so that each starts fast.

Exit codes: 0 fine, 1 found something or failed, 2 usage.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from cli_input import (
    AtOption,
    ConfigOption,
    InputPath,
    InputPaths,
    JsonOption,
    ScopeOption,
    SourceOption,
    fail,
    instant_ms,
    load_settings,
    one_line_errors,
    opened,
    print_answer,
    print_json,
    repeated_options,
    scope_of,
    some_text,
    source_or_first,
    text_lines,
    when,
)

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="The on-call console for vLLM fleets: what the queue and the KV cache do, why, and what to do next.",
)
sim = typer.Typer(no_args_is_help=True, help="The simulated vLLM fleet.")
store = typer.Typer(no_args_is_help=True, help="The embedded Prometheus-compatible store.")
app.add_typer(sim, name="sim")
app.add_typer(store, name="store")


@app.command()
def demo(
    replicas: Annotated[int, typer.Option(min=1, max=64)] = 4,
    scenario: str = "demo",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8501,
) -> None:
    """Simulator, store and console in one process tree; Ctrl-C stops all of them."""
    from demo import run_demo

    raise typer.Exit(run_demo(replicas=replicas, scenario=scenario, port=port))


@app.command()
def ui(
    source: SourceOption = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535)] = None,
    config: ConfigOption = None,
    scope: ScopeOption = None,
) -> None:
    """The console alone, on a live source or on an incident file."""
    with one_line_errors():
        from collectors.sources import open_source

        settings = load_settings(config)
        chosen = scope_of(scope)
        spec = source_or_first(source, settings)
        open_source(spec, settings, chosen)  # a wrong address or file is said here, before a page is served
        from app import run_ui

        run_ui(spec, host=settings.server.address, port=port or settings.server.port, config_path=config, scope=chosen)


@app.command()
def query(
    promql: str,
    source: SourceOption = None,
    at: AtOption = None,
    start: Annotated[str | None, typer.Option()] = None,
    end: Annotated[str | None, typer.Option()] = None,
    step: Annotated[float, typer.Option(help="seconds", min=0.001)] = 15.0,
    config: ConfigOption = None,
    scope: ScopeOption = None,
) -> None:
    """Ask PromQL; prints the Prometheus API JSON."""
    with one_line_errors():
        from collectors.model import Window

        opened_source, _ = opened(source, config, scope)
        if start is None and end is None:
            print_answer(opened_source.answer(promql, when(opened_source, at)))
            return
        if start is None or at is not None:
            fail("a range needs --start (and --end), without --at", 2)
        start_ms = instant_ms(start, "--start")
        end_ms = instant_ms(end, "--end") if end is not None else opened_source.now_ms()
        if end_ms < start_ms:
            fail("--end lies before --start", 2)
        print_answer(opened_source.answer(promql, Window(start_ms, end_ms, max(1, round(step * 1000)))))


@app.command()
def diagnose(
    source: SourceOption = None,
    at: AtOption = None,
    json: JsonOption = False,
    config: ConfigOption = None,
    scope: ScopeOption = None,
) -> None:
    """What is wrong at an instant: laws, anomalies, causes. Exit code 1 when something is."""
    with one_line_errors():
        from runbooks.diagnosis import diagnose as judge

        opened_source, settings = opened(source, config, scope)
        diagnosis = judge(opened_source, when(opened_source, at), settings)
        if json:
            print_json(diagnosis.to_json())
        else:
            print(diagnosis.to_text(repeated_options(source, config, scope, at)))
        raise typer.Exit(0 if diagnosis.healthy else 1)


@app.command()
def walk(
    runbook: str,
    source: SourceOption = None,
    instance: str | None = None,
    engine: str | None = None,
    at: AtOption = None,
    json: JsonOption = False,
    export: Annotated[
        Path | None, typer.Option(help="also write it with charts: FILE.zip, or FILE.md with the pictures inside")
    ] = None,
    config: ConfigOption = None,
    scope: ScopeOption = None,
) -> None:
    """Walk a runbook: all automatic steps, with findings."""
    with one_line_errors():
        from runbooks.engine import RunbookError
        from runbooks.engine import walk as walk_runbook

        opened_source, settings = opened(source, config, scope)
        try:
            walked = walk_runbook(
                runbook, opened_source, when(opened_source, at), settings, instance=instance, engine=engine
            )
        except RunbookError as error:
            fail(str(error), 2)
        if export is not None:
            from runbooks.walk_bundle import export_walk, unrecorded

            charts = export_walk(unrecorded(walked, "pagewatch walk", opened_source.now_ms()), opened_source, export)
            typer.echo(f"wrote {export} with {charts} charts", err=True)
        if json:
            print_json(walked.to_json())
        else:
            print(walked.to_text())
        raise typer.Exit(0 if walked.outcome.cause in (None, "healthy") else 1)


@app.command(name="import")
def import_(file: InputPath, out: Annotated[Path, typer.Option("--out")]) -> None:
    """Turn a recording, OpenMetrics, VictoriaMetrics lines, Parquet or a Prometheus data folder into an incident file."""
    with one_line_errors():
        from collectors.capsule.convert import import_file

        print(import_file(file, out))


@app.command()
def export(
    capsule: InputPath,
    file: Annotated[Path, typer.Argument(readable=False)],
    to: Annotated[str, typer.Option("--to", help="openmetrics, parquet, prometheus-json or victoria-metrics")],
) -> None:
    """Write an incident file in another program's format."""
    with one_line_errors():
        from collectors.capsule.convert import FORMATS, export_capsule

        if to.replace("victoriametrics", "victoria-metrics") not in FORMATS:
            fail(f"--to {to!r}: formats are {', '.join(FORMATS)}", 2)
        print(export_capsule(capsule, to, file))


@app.command()
def record(
    start: Annotated[str, typer.Option()],
    out: Annotated[Path, typer.Option("--out")],
    source: SourceOption = None,
    end: Annotated[str | None, typer.Option()] = None,
    match: Annotated[list[str] | None, typer.Option(help="Selector of what to keep; repeatable.")] = None,
    redact: Annotated[
        list[str] | None,
        typer.Option(help="label=regex: matching parts of that label's values are replaced; repeatable."),
    ] = None,
    config: ConfigOption = None,
    scope: ScopeOption = None,
) -> None:
    """Record raw samples from any source into an incident file."""
    with one_line_errors():
        from runbooks.recording import record_incident

        opened_source, settings = opened(source, config, scope)
        start_ms = instant_ms(start, "--start")
        end_ms = instant_ms(end, "--end") if end is not None else opened_source.now_ms()
        if end_ms <= start_ms:
            fail("--end must lie after --start", 2)

        def progress(done: float, note: str) -> None:
            if sys.stderr.isatty():
                print(f"\r{done:4.0%} {note:<60}", end="" if done < 1 else "\n", file=sys.stderr, flush=True)

        print(
            record_incident(
                opened_source, start_ms, end_ms, out, settings, match=match, redact=scope_of(redact), progress=progress
            )
        )


def tell_other_reading(answer: Mapping[str, Any], file: str, *, refused: bool) -> None:
    """One line more where a file that says nothing to one reader says something to the other; standard input is read only once."""
    if answer["class"] != "undetermined" or file == "-":
        return
    from runbooks.memory import read_as

    if read_as(list(text_lines(file)), refused=refused)[1] != refused:
        print(f"next: pagewatch {'ledger' if refused else 'admission'} {shlex.quote(file)}")


@app.command()
def ledger(
    file: Annotated[str, typer.Argument(help="A log, or - for standard input.")] = "-", json: JsonOption = False
) -> None:
    """Rebuild the account of device memory from a start-up log or an out-of-memory message."""
    with one_line_errors():
        from runbooks.memory import ledger as account
        from runbooks.memory.text import ledger_text

        answer = account(text_lines(file) if json else some_text(file, "the log of a start, or the end of one"))
        if json:
            print_json(answer)
        else:
            print(ledger_text(answer))
            tell_other_reading(answer, file, refused=False)
        raise typer.Exit(0 if answer["class"] == "not_memory" and answer["line"] is None else 1)


@app.command()
def admission(
    file: Annotated[str, typer.Argument(help="A log or an error body, or - for standard input.")] = "-",
    json: JsonOption = False,
) -> None:
    """Say which limit refused a request, by how much, and the smallest change that would pass."""
    with one_line_errors():
        from runbooks.memory import admission as decode
        from runbooks.memory.text import admission_text

        answer = decode(text_lines(file) if json else some_text(file, "the log or the error body of the refusal"))
        if json:
            print_json(answer)
        else:
            print(admission_text(answer))
            tell_other_reading(answer, file, refused=True)
        raise typer.Exit(1 if answer["requests"] or answer["class"] == "undetermined" else 0)


@app.command()
def lint(files: InputPaths, dialect: str = "vllm-0.11.0", json: JsonOption = False) -> None:
    """Find wrong PromQL in Grafana dashboards and rule files. Exit code 1 when there are errors."""
    with one_line_errors():
        from runbooks.lint import lint_files, lint_text

        try:
            answer = lint_files(files, dialect)
        except ValueError as error:
            fail(f"--dialect: {error}", 2)
        if json:
            print_json(answer)
        else:
            print(lint_text(answer))
        raise typer.Exit(1 if any(finding["severity"] == "error" for finding in answer["findings"]) else 0)


@app.command()
def rules(
    dialect: str = "vllm-0.11.0",
    form: Annotated[str, typer.Option("--format", help="plain, prometheusrule or alertmanager")] = "plain",
    config: ConfigOption = None,
) -> None:
    """Prometheus alerting rules made from the detectors, with runbook_url."""
    with one_line_errors():
        from runbooks.rules import RulesError, rules_text

        try:
            print(rules_text(load_settings(config), dialect=dialect, form=form), end="")
        except RulesError as error:
            fail(str(error), 2)


@app.command(name="serve-api")
def serve_api_(
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8502,
    source: Annotated[str | None, typer.Option(help="Default: the first source of the config file.")] = None,
    host: str = "127.0.0.1",
    config: ConfigOption = None,
    scope: ScopeOption = None,
) -> None:
    """Alertmanager webhook in, incidents and diagnoses out (JSON)."""
    with one_line_errors():
        from runbooks.api import serve_api

        settings = load_settings(config)
        settings = settings.model_copy(update={"scope": {**settings.scope, **scope_of(scope)}})
        serve_api(settings, host=host, port=port, source_spec=source, environment=os.environ)


@app.command()
def doctor(
    source: Annotated[
        str | None,
        typer.Option(help="A URL, a name from the config file, or a capsule; default: every configured source."),
    ] = None,
    config: ConfigOption = None,
    scope: ScopeOption = None,
) -> None:
    """What was found, what is missing, which config line mends it."""
    with one_line_errors():
        from collectors.doctor import doctor as examine

        settings = load_settings(config)
        chosen = {**settings.scope, **scope_of(scope)}
        findings = examine(source, settings.model_copy(update={"scope": chosen}))
        for finding in findings:
            print(finding)
        raise typer.Exit(1 if any(finding.severity == "error" for finding in findings) else 0)


@sim.command()
def serve(
    scenario: str = "demo",
    replicas: Annotated[
        int, typer.Option(min=1, max=256, help="The scenario's load changes in proportion to what it states.")
    ] = 4,
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8000,
    seed: int = 1,
    targets_file: Annotated[
        Path | None, typer.Option(help="Write the replicas' addresses there in file_sd form.")
    ] = None,
    control_port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Where load and faults are steered; default: after the replicas."),
    ] = None,
) -> None:
    """Real time: /metrics and OpenAI routes per replica."""
    with one_line_errors():
        from sim_backend.fleet import serve as serve_fleet
        from sim_backend.scenario import ScenarioError

        try:
            serve_fleet(
                scenario=scenario,
                replicas=replicas,
                port=port,
                seed=seed,
                targets_file=targets_file,
                control_port=control_port,
            )
        except ScenarioError as error:
            fail(str(error), 2)


@sim.command()
def golden(traces: InputPaths) -> None:
    """Re-run recorded scheduler traces; print the first divergence of each."""
    with one_line_errors():
        from sim_backend.golden import TraceError, check_trace

        wrong = 0
        for trace in traces:
            try:
                divergence = check_trace(trace)
            except TraceError as error:  # the other traces are still worth a run
                print(f"pagewatch: {error}", file=sys.stderr)
                wrong += 1
                continue
            wrong += divergence is not None
            print(f"{trace.name}: {divergence or 'identical'}")
        raise typer.Exit(1 if wrong else 0)


@sim.command()
def run(
    out: Annotated[Path, typer.Option("--out")],
    scenario: str = "demo",
    duration: Annotated[str, typer.Option(help="2h, 30m, 90s")] = "30m",
    replicas: Annotated[
        int | None,
        typer.Option(min=1, max=256, help="Default: as many as the scenario states; its load changes in proportion."),
    ] = None,
    seed: int = 1,
    scrape_interval: Annotated[float, typer.Option(help="seconds", min=0.1)] = 5.0,
    start: Annotated[str | None, typer.Option(help="First instant; default: now minus the duration.")] = None,
) -> None:
    """Virtual time, as fast as it goes; writes an incident file with the ground truth in its manifest."""
    with one_line_errors():
        from collectors.capsule.simulated import write_simulated
        from collectors.instants import parse_duration_ms
        from sim_backend.run import run as run_fleet
        from sim_backend.scenario import ScenarioError

        try:
            seconds = parse_duration_ms(duration) / 1000
        except ValueError as error:
            fail(f"--duration: {error}", 2)
        began = instant_ms(start, "--start") if start is not None else round((time.time() - seconds) * 1000)
        try:
            simulated = run_fleet(
                scenario=scenario,
                duration_seconds=seconds,
                seed=seed,
                replicas=replicas,
                scrape_interval_seconds=scrape_interval,
                start_ms=began,
            )
            print(write_simulated(simulated, out))
        except ScenarioError as error:
            fail(str(error), 2)


@store.command(name="serve")
def store_serve(
    targets: Annotated[str, typer.Option(help="host:port[,host:port...] or a file_sd JSON/YAML file.")],
    port: Annotated[int, typer.Option(min=1, max=65535)] = 9090,
    data: Annotated[Path | None, typer.Option(help="Folder for the samples; default: in memory only.")] = None,
    host: str = "127.0.0.1",
    interval: Annotated[float, typer.Option(help="scrape interval, seconds", min=0.5)] = 5.0,
    retention: Annotated[str, typer.Option(help="6h, 2d")] = "6h",
    job: str = "vllm",
    retention_mib: Annotated[int | None, typer.Option(min=1, help="Also keep at most this much on disk.")] = None,
    allowed_host: Annotated[list[str] | None, typer.Option(help="Host name that clients may use; repeatable.")] = None,
) -> None:
    """Scrape targets and answer the Prometheus HTTP API."""
    with one_line_errors():
        from collectors.instants import parse_duration_ms
        from collectors.store.server import serve_store

        try:
            keep_seconds = parse_duration_ms(retention) / 1000
        except ValueError as error:
            fail(f"--retention: {error}", 2)
        serve_store(
            targets,
            host=host,
            port=port,
            data_dir=data,
            interval_seconds=interval,
            retention_seconds=keep_seconds,
            job=job,
            retention_bytes=retention_mib * 2**20 if retention_mib is not None else None,
            allowed_hosts=allowed_host or (),
        )


def main() -> None:
    if "PAGEWATCH_LIFELINE_FD" in os.environ:
        from demo import hold_lifeline

        hold_lifeline(dict(os.environ))
    app()


if __name__ == "__main__":
    main()
