"""Two arms whose schedule docs/schedule.md calculates."""

from telemetry.statistics.forecast import ArmRates

P5 = ArmRates(
    n_nodes=4,
    usd_per_hour=240.0,
    tokens_per_s=100_000.0,
    checkpoint_s_per_hour=36.0,
    checkpoint_every_s=3_600.0,
    compile_s=0.0,
    load_s=600.0,
    warm_up_s=0.0,
    failures_per_node_day=0.05,
    recompiles_per_day=0.0,
)
TRN2 = ArmRates(
    n_nodes=4,
    usd_per_hour=144.0,
    tokens_per_s=90_000.0,
    checkpoint_s_per_hour=36.0,
    checkpoint_every_s=3_600.0,
    compile_s=7_200.0,
    load_s=600.0,
    warm_up_s=0.0,
    failures_per_node_day=0.05,
    recompiles_per_day=1.0,
)
PORTING_USD = 20_000.0
