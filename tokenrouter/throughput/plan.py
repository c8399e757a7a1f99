"""`tokenrouter plan`: throughput over the thresholds B, and the best ones, before anything is served."""
from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tokenrouter.core import InputError
from tokenrouter.throughput import inputs
from tokenrouter.throughput.spec import NEEDED, Spec, positive

if TYPE_CHECKING:  # the solvers take seconds to import, and are needed once the arguments are right
    from tokenrouter.throughput.search import Search, Value

_FIELDS = {"N": "N", "P": "P", "C": "C", "L": "L_ms", "B": "B", "hold": "hold", "contention": "contention"}
"""Options that replace a field of the spec."""
_EXAMPLE = "tokenrouter plan --N 4 --p 0.35 --L 6.0,27.9"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command. Values are JSON, or numbers separated by commas."""
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--spec", metavar="FILE", help="JSON object of N, P, C, L_ms, delta_ms, perhaps B, hold, ...")
    source.add_argument("--summary", metavar="FILE", help="a run's summary.json: P, C, latencies and concurrency")
    source.add_argument("--profile", metavar="FILE", help="a routing profile: P and C; N and L must be given")
    parser.add_argument("--N", type=_value, help="concurrent requests")
    parser.add_argument("--P", type=_value, help="routing probabilities, [[p_00, p_01], ...]")
    parser.add_argument("--C", type=_value, help="tokens committed by each transition")
    parser.add_argument("--p", type=_value, help="R2R's P and C: model 0 hands over with p, model 1 returns")
    parser.add_argument("--L", type=_value, help="step latency in ms of each model, or table by batch size: 6.0,27.9")
    parser.add_argument("--delta-ms", type=_value, help="time quantum, of which latencies are multiples (default 0.1)")
    parser.add_argument("--B", type=_value, help="thresholds to compare with the best ones: 1,3")
    parser.add_argument("--fix", metavar="MODEL=B", action="append", help="a threshold that is not searched: 0=1")
    parser.add_argument("--hold", type=_value, help="models under the hold rule: 0 or 0,1")
    parser.add_argument("--contention", type=_value, help="slowdown while models share a device: 1.5")
    parser.add_argument("--run-lengths", action="store_true", help="use the profile's run lengths, not geometric ones")
    parser.add_argument("--plot", metavar="FILE", help="also draw the curves into a PNG file")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def run(args: argparse.Namespace) -> int:
    """Prints the plan. Raises InputError for what cannot be planned."""
    fields, fixed = _fields(args), _fixed(args.fix)
    _check_complete(args, fields)
    try:
        return _plan(args, Spec.parse(fields), fixed)
    except InputError as error:
        raise InputError(_as_given(args, str(error))) from None


def _plan(args: argparse.Namespace, spec: Spec, fixed: dict[int, int]) -> int:
    from rich.console import Console

    from tokenrouter.throughput import show
    from tokenrouter.throughput.search import evaluate, search
    from tokenrouter.throughput.sensitivity import sensitivity

    found = search(spec, fixed)
    given = None if spec.B is None else evaluate(spec, spec.B)
    if args.plot:
        show.save_plot(args.plot, spec, found)
    if args.json:
        print(json.dumps(_report(spec, found, given)))
        return 0
    console = Console()
    show.show_system(console, spec)
    show.show_search(console, spec, found)
    if spec.B is not None and given is not None:
        show.show_value(console, "given", spec.B, given, found.best.throughput)
    measured = inputs.measured_throughput(args.summary) if args.summary else None
    if measured is not None and given is not None:
        ratio = measured / given.throughput
        console.print(f"the run measured {measured:.2f} tok/s, {ratio:.3f} x predicted", highlight=False)
    show.show_sensitivity(console, sensitivity(spec, found.B, fixed), found.B)
    return 0


def _report(spec: Spec, found: Search, given: Value | None) -> dict[str, object]:
    """What scripts get. states: of the paper's chain under B, or under the best B; null where it is not enumerated."""
    from tokenrouter.throughput.search import SIMULATION, states

    value = given or found.best
    methods = dict.fromkeys([value.method, found.best.method, found.eager.method, found.method])
    return {
        "throughput": None if given is None else given.throughput,
        "best": {"B": list(found.B), "throughput": found.best.throughput},
        "eager": found.eager.throughput,
        "states": None if value.method == SIMULATION else states(spec, spec.B or found.B),
        "method": ", ".join(methods),
    }


def _fields(args: argparse.Namespace) -> inputs.Fields:
    delta = 0.1 if args.delta_ms is None else positive("--delta-ms", args.delta_ms)
    fields: inputs.Fields
    if args.spec:
        fields = inputs.read_json(args.spec)
        if args.delta_ms is not None:
            fields["delta_ms"] = delta
    else:
        fields = {"delta_ms": delta}
        if args.summary:
            fields |= inputs.from_summary(args.summary, delta)
        if args.profile:
            fields |= inputs.from_profile(args.profile)
            if not args.run_lengths:
                fields["run_lengths"] = None
    if args.run_lengths and fields.get("run_lengths") is None:
        raise InputError("--run-lengths: no profile with run_lengths is given")
    if args.p is not None:
        if isinstance(args.p, bool) or not isinstance(args.p, int | float) or not 0 <= args.p <= 1:
            raise InputError(f"--p: {args.p!r} is not a probability; 0 to 1 are allowed")
        fields |= inputs.r2r_shape(args.p)
    given = {field: getattr(args, option) for option, field in _FIELDS.items() if getattr(args, option) is not None}
    if isinstance(given.get("hold"), int):
        given["hold"] = [given["hold"]]
    return fields | given


def _check_complete(args: argparse.Namespace, fields: inputs.Fields) -> None:
    """InputError with all that is missing, unless a spec is to blame, which says so itself."""
    missing = {name for name in NEEDED if fields.get(name) is None}
    if args.spec or not missing:
        return
    options = [f"--{name.removesuffix('_ms')}" for name in NEEDED if name in missing]
    if {"P", "C"} <= missing:
        options = ["--p (or --P and --C)" if option == "--P" else option for option in options if option != "--C"]
    raise InputError(f"{', '.join(options)}: missing; for example: {_EXAMPLE}")


def _as_given(args: argparse.Namespace, message: str) -> str:
    """A message that begins with a field's name: with the option, or the file, that the field came from."""
    options = {field: f"--{option}" for option, field in _FIELDS.items() if getattr(args, option) is not None}
    if args.p is not None:
        options = {"P": "--p", "C": "--p"} | options
    if args.delta_ms is not None or not args.spec:
        options["delta_ms"] = "--delta-ms"
    options["fixed"] = "--fix"
    told = re.sub(r"^\w+|(?<=of )delta_ms|\bL_ms(?= gives)", lambda found: options.get(found[0], found[0]), message)
    file = args.spec or args.summary or args.profile
    return f"{file}: {told}" if file and not told.startswith((file, "--")) else told


def _fixed(given: Sequence[str] | None) -> dict[int, int]:
    fixed = {}
    for item in given or ():
        model, _, threshold = item.partition("=")
        if not (model.isdecimal() and threshold.isdecimal()):
            raise InputError(f"--fix: {item!r} is not MODEL=B, such as 0=1")
        fixed[int(model)] = int(threshold)
    return fixed


def _value(text: str) -> object:
    """JSON, one number, or several separated by commas."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        numbers = [int(part) if part.strip().isdecimal() else float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor a list of numbers") from None
    return numbers if len(numbers) > 1 else numbers[0]
