"""Judgements in words: what stands, why, and what to do about the rest."""

from telemetry.support import Basis, Judgement, State

ANALYZE = "neuron_parallel_compile --command analyze python one_layer.py"
LIST_OPERATORS = "neuronx-cc list-operators --framework XLA"
BY_PYTORCH = frozenset({"aten", "prims"})
WHY = {
    Basis.LIST: "on the published list",
    Basis.ALIAS: "on the published list as {detail}",
    Basis.TARGET: "a custom call that the compiler recognises ({detail})",
    Basis.LOWERING: "part of the listed {detail}; other uses of it may still fail",
    Basis.REFUSED_TYPE: "used with a type that the compiler refuses: {detail}",
    Basis.REFUSED: "the compiler refuses it: {detail}",
    Basis.NONE: "nothing published names it",
}


def headline(n_operators: int, n_unsupported: int, n_unknown: int) -> str:
    """Say first what stands.

    Examples
    --------
    >>> headline(47, 3, 9)
    '3 of 47 operators are unsupported, 9 unknown.'
    >>> headline(12, 0, 0)
    'All 12 operators are supported.'
    """
    of = f"of {n_operators:,} operator{'s' if n_operators != 1 else ''}"
    if n_unsupported:
        verb = "is" if n_unsupported == 1 else "are"
        return f"{n_unsupported:,} {of} {verb} unsupported, {n_unknown or 'none'} unknown."
    if n_unknown:
        verb = "is" if n_unknown == 1 else "are"
        return f"None is known to be unsupported, but {n_unknown:,} {of} {verb} unknown."
    return (
        "The only operator is supported." if n_operators == 1 else f"All {of[3:]} are supported."
    )


def why(judged: Judgement) -> str:
    """Say what a judgement rests on."""
    if judged.basis is Basis.REPORT:
        return _by_report(judged)
    if judged.basis is Basis.NONE and is_own(judged.name):
        return "an operator of your own: nothing published can know it"
    return WHY[judged.basis].format(detail=judged.detail)


def _by_report(judged: Judgement) -> str:
    if judged.state is State.SUPPORTED:
        return "the compiler took it" + (
            "" if judged.is_listed else "; the published list lacks it"
        )
    all_of = judged.n_failed == judged.n_tried
    times = f"{judged.n_failed:,} of {judged.n_tried:,} uses"
    said = f"the compiler refused {'it' if all_of else times}"
    told = f" ({judged.detail})" if judged.detail else ""
    return f"{said}{told}" + (
        "; the published list has it, but its word stands" if judged.is_listed else ""
    )


def to_do(judged: Judgement) -> str:
    """Say what to do about an operator; nothing about one that is supported."""
    if judged.state is State.SUPPORTED:
        return ""
    if judged.state is State.UNKNOWN:
        return _to_find_out(judged.name)
    if judged.basis is Basis.REFUSED_TYPE and judged.detail.startswith("c"):
        return "keep real and imaginary parts as two tensors, or leave it to the CPU"
    if judged.basis is Basis.REFUSED_TYPE:
        return "use bf16, fp16 or an 8-bit type that the chip has"
    return "write it with other operators, or as a kernel of your own (NKI)"


def _to_find_out(name: str) -> str:
    kind = name.partition("::")[0]
    if kind == "module":
        return "export the model by torch.export, so that modules become operators"
    if kind == "hlo":
        return f"look for it in the output of {LIST_OPERATORS}, or compile one layer with it"
    if is_own(name):
        return "write it in operators of PyTorch or as a kernel (NKI), then compile one layer"
    return "compile a model of one layer that uses it, or run the analyzer on it"


def is_own(name: str) -> bool:
    """Whether an operator is neither PyTorch's nor XLA's."""
    kind = name.partition("::")[0]
    return kind not in BY_PYTORCH | {"hlo", "module"}


def rests_on(n_listed: int, list_date: str, *, has_report: bool) -> str:
    """Say how far the judgement carries."""
    listed = (
        f"The published list has {n_listed} operators and has hardly changed since 2022 "
        f"(last in {list_date}): it is no oracle. What it lacks is unknown, not unsupported: "
        "XLA takes far more."
    )
    if has_report:
        return (
            f"The compiler's own report overrides the published list wherever it speaks. {listed}"
        )
    return f"{listed} Only the compiler knows: its report overrides the list."
