"""Every metric of Moonpool: name, help, labels and buckets, in one place, so that all services
count the same thing under the same name and dashboards need no second list."""

from dataclasses import dataclass

SERIES_MAX = 256  # sets of label values per metric, unless said otherwise


@dataclass(frozen=True, slots=True)
class CounterSpec:
    name: str  # ends in `_total`
    help: str
    labels: tuple[str, ...] = ()
    series_max: int = SERIES_MAX


@dataclass(frozen=True, slots=True)
class GaugeSpec:
    name: str
    help: str
    labels: tuple[str, ...] = ()
    series_max: int = SERIES_MAX


@dataclass(frozen=True, slots=True)
class HistogramSpec:
    name: str  # ends in its unit
    help: str
    buckets: tuple[float, ...]  # upper bounds, rising
    labels: tuple[str, ...] = ()
    series_max: int = SERIES_MAX


Spec = CounterSpec | GaugeSpec | HistogramSpec

_LATENCY_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
_TBT_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0)
_SHORT_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
_TOKENS = (16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0, 131072.0)
_BATCH = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)

# Requests, as users see them (gateway)
REQUESTS = CounterSpec(
    "moonpool_requests_total",
    "Requests ended, by endpoint and outcome (ok, stopped, cancelled, refused, error).",
    ("endpoint", "outcome"),
)
REQUESTS_RUNNING = GaugeSpec("moonpool_requests_running", "Requests between in and out.")
REJECTIONS = CounterSpec(
    "moonpool_rejections_total", "Requests refused before any work, by reason.", ("reason",)
)
TTFT = HistogramSpec(
    "moonpool_ttft_seconds", "From request in to first token out.", _LATENCY_S, ("model",)
)
TBT = HistogramSpec("moonpool_tbt_seconds", "Time between tokens of one answer.", _TBT_S)
REQUEST_SECONDS = HistogramSpec(
    "moonpool_request_seconds", "From request in to its end.", _LATENCY_S, ("endpoint",)
)
PROMPT_TOKENS = CounterSpec("moonpool_prompt_tokens_total", "Tokens of accepted prompts.")
COMPLETION_TOKENS = CounterSpec("moonpool_completion_tokens_total", "Tokens given to users.")
PROMPT_LENGTH = HistogramSpec("moonpool_prompt_length_tokens", "Length of prompts.", _TOKENS)
GATEWAY_OVERHEAD_SECONDS = HistogramSpec(
    "moonpool_gateway_overhead_seconds", "From request in to plan asked for.", _SHORT_S
)
CACHED_TOKENS = CounterSpec(
    "moonpool_cached_tokens_total",
    "Prompt tokens of users' requests that were not computed, by the tier they came from.",
    ("tier",),
)
FAILOVERS = CounterSpec(
    "moonpool_failovers_total", "Answers continued on another instance, by cause.", ("cause",)
)
AUDIT_LOST = CounterSpec("moonpool_audit_lost_total", "Audit events that no stream accepted.")

# Prefix reuse (whoever admits the prompt: prefill, colocated)
HIT_REQUESTS = CounterSpec(
    "moonpool_prefix_requests_total",
    "Prompts by kind of hit: full (all full blocks reused), incremental (some), none.",
    ("kind",),
)
HIT_TOKENS = CounterSpec(
    "moonpool_prefix_hit_tokens_total",
    "Prompt tokens not computed, by the tier they came from and the kind of hit.",
    ("tier", "kind"),
)
MISS_TOKENS = CounterSpec("moonpool_prefix_miss_tokens_total", "Prompt tokens computed.")
BLOCK_FETCH_SECONDS = HistogramSpec(
    "moonpool_block_fetch_seconds", "Fetching reused blocks of one prompt.", _LATENCY_S, ("tier",)
)
BLOCK_FETCH_FAILURES = CounterSpec(
    "moonpool_block_fetch_failures_total", "Blocks not had in time or intact.", ("tier", "cause")
)
BLOCKS_CORRUPT = CounterSpec(
    "moonpool_blocks_corrupt_total", "Blocks dropped for a wrong checksum.", ("where",)
)

# Instances
PREFILL_QUEUE_DEPTH = GaugeSpec("moonpool_prefill_queue_depth", "Prompts waiting or running.")
PREFILL_QUEUE_TOKENS = GaugeSpec("moonpool_prefill_queue_tokens", "Tokens still to compute.")
PREFILL_QUEUE_SECONDS = HistogramSpec(
    "moonpool_prefill_queue_seconds", "Waiting in the prefill's queue.", _LATENCY_S
)
PREFILL_COMPUTE_SECONDS = HistogramSpec(
    "moonpool_prefill_compute_seconds", "Compute of one prompt.", _LATENCY_S
)
DECODE_SLOTS_USED = GaugeSpec("moonpool_decode_slots_used", "Sequences running or reserved.")
DECODE_SLOTS = GaugeSpec("moonpool_decode_slots", "Sequences that can run at once.")
DECODE_STEP_SECONDS = HistogramSpec("moonpool_decode_step_seconds", "One decode step.", _TBT_S)
DECODE_BATCH = HistogramSpec("moonpool_decode_batch_sequences", "Sequences of one step.", _BATCH)
KV_BLOCKS_USED = GaugeSpec("moonpool_kv_blocks_used", "Device blocks in use by requests.")
KV_BLOCKS_CACHED = GaugeSpec("moonpool_kv_blocks_cached", "Device blocks kept for reuse only.")
KV_BLOCKS = GaugeSpec("moonpool_kv_blocks", "Device blocks in all.")
RESERVATIONS_EXPIRED = CounterSpec(
    "moonpool_reservations_expired_total", "Places freed because no start came in time."
)

# Tiers (nodes, and instances for hbm)
TIER_BYTES_USED = GaugeSpec("moonpool_tier_used_bytes", "Bytes held.", ("tier",))
TIER_BYTES = GaugeSpec("moonpool_tier_bytes", "Bytes that fit.", ("tier",))
TIER_BLOCKS = GaugeSpec("moonpool_tier_blocks", "Blocks held.", ("tier",))
TIER_USABLE = GaugeSpec(
    "moonpool_tier_usable", "1 while what lies in a lower tier can be read.", ("tier",)
)
TIER_FRAGMENTATION = GaugeSpec(
    "moonpool_tier_fragmentation_ratio",
    "Share of a tier's free bytes that one object could not get, 0 to 1.",
    ("tier",),
)
TIER_MOVES = CounterSpec(
    "moonpool_tier_moves_total",
    "Blocks moved between tiers, by direction (promotions, demotions) and outcome.",
    ("direction", "outcome"),
)
EVICTIONS = CounterSpec("moonpool_evictions_total", "Blocks evicted, by tier.", ("tier",))
LEASES = GaugeSpec("moonpool_leases", "Read leases given out.")
PINS = GaugeSpec("moonpool_pins", "Blocks pinned, by kind (hard, soft).", ("kind",))
REPLICAS = CounterSpec(
    "moonpool_replicas_total",
    "Copies that blocks want on other nodes, by outcome (made, failed).",
    ("outcome",),
)
PROMOTED_AHEAD = CounterSpec(
    "moonpool_promoted_ahead_total", "Blocks brought up before the request that wants them ran."
)
PUTS = CounterSpec("moonpool_puts_total", "Blocks put, by outcome.", ("outcome",))
GETS = CounterSpec("moonpool_gets_total", "Blocks asked for, by tier or `miss`.", ("result",))

# Transfer
TRANSFER_BYTES = CounterSpec("moonpool_transfer_bytes_total", "Bytes moved.", ("transport", "op"))
TRANSFER_SECONDS = CounterSpec(
    "moonpool_transfer_seconds_total",
    "Seconds that slices were on their way; bytes over it is the speed of one.",
    ("transport", "op"),
)
TRANSFER_SLICES = CounterSpec(
    "moonpool_transfer_slices_total", "Slices moved.", ("transport", "op")
)
TRANSFER_SERVED_BYTES = CounterSpec(
    "moonpool_transfer_served_bytes_total",
    "Bytes moved for peers, where we take part in it (not over shm and rdma).",
    ("transport",),
)
TRANSFER_SLICE_SECONDS = HistogramSpec(
    "moonpool_transfer_slice_seconds",
    "Seconds that one slice was on its way.",
    tuple(10e-6 * 2**i for i in range(20)),
    ("transport", "op"),
)
TRANSFER_RETRIES = CounterSpec(
    "moonpool_transfer_retries_total", "Slices that were tried again, here or on another path."
)
TRANSFER_FAILURES = CounterSpec(
    "moonpool_transfer_failures_total", "Slices that ended in an error, by its code.", ("code",)
)
TRANSFER_REFUSALS = CounterSpec(
    "moonpool_transfer_refusals_total",
    "Grants of ours that were not honoured, by reason.",
    ("reason",),
)
TRANSFER_NIC_BYTES = CounterSpec(
    "moonpool_transfer_nic_bytes_total",
    "Bytes moved over each NIC of ours, where there are several.",
    ("transport", "nic"),
)
TRANSFER_NIC_RESTS = CounterSpec(
    "moonpool_transfer_nic_rests_total",
    "Times that a NIC was left alone because it failed, fell silent or was far too slow.",
    ("transport", "nic"),
)
TRANSFER_BAD_FRAMES = CounterSpec(
    "moonpool_transfer_bad_frames_total",
    "Bytes from peers that no correct peer sends, by transport.",
    ("transport",),
)
TRANSFER_CORRUPT = CounterSpec(
    "moonpool_transfer_corrupt_frames_total",
    "Frames from peers that were damaged on their way, by transport.",
    ("transport",),
)
TRANSFER_ENDPOINTS = GaugeSpec(
    "moonpool_transfer_endpoints",
    "Connections: those we opened, and those of peers that we serve.",
    ("transport", "side"),
)
TRANSFER_PATHS = GaugeSpec(
    "moonpool_transfer_paths", "Ways to peers, by whether they work now.", ("state",)
)

# Conductor
PLANS = CounterSpec("moonpool_plans_total", "Plans made or refused, by outcome.", ("outcome",))
PLAN_SECONDS = HistogramSpec("moonpool_plan_seconds", "Making one plan.", _SHORT_S)
INDEX_BLOCKS = GaugeSpec("moonpool_index_blocks", "Replicas known to the index.", ("tier",))
INDEX_RESYNCS = CounterSpec(
    "moonpool_index_resyncs_total", "Snapshots fetched from owners, by cause.", ("cause",)
)
BALANCED_BLOCKS = CounterSpec(
    "moonpool_balanced_blocks_total",
    "Blocks that nodes were asked to copy or to let go, by verb and what became of them.",
    ("verb", "outcome"),
)
PREDICTION_ERROR = GaugeSpec(
    "moonpool_prediction_error_ratio",
    "|predicted - actual| / actual of the last predictions, by model and quantile.",
    ("model", "quantile"),
)
TTFT_ALLOWANCE = GaugeSpec(
    "moonpool_ttft_allowance_ratio",
    "Times the predicted time to first token that admission allows for: what four of five kept.",
)
TTFT_ERROR = GaugeSpec(
    "moonpool_ttft_error_ratio",
    "|predicted - actual| / actual time to first token of the last requests, by quantile.",
    ("quantile",),
)
TTFT_RATIO = HistogramSpec(
    "moonpool_ttft_actual_over_predicted_ratio",
    "Time to first token as users saw it, from the plan on, over what the plan predicted.",
    (0.25, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0, 8.0),
)
PREDICTED_TTFT_SECONDS = HistogramSpec(
    "moonpool_predicted_ttft_seconds", "Time to first token that plans predicted.", _LATENCY_S
)
MEMBERS = GaugeSpec("moonpool_members", "Members of the mesh.", ("role", "state"))

# Every service
BUS_REQUESTS = GaugeSpec("moonpool_bus_requests", "Requests sent since start.")
BUS_TIMEOUTS = GaugeSpec("moonpool_bus_timeouts", "Requests without a reply since start.")
BUS_DROPPED = GaugeSpec("moonpool_bus_dropped", "Messages dropped by slow readers since start.")
BUS_RECONNECTS = GaugeSpec("moonpool_bus_reconnects", "Connections to NATS made anew since start.")
EVENTS_PUBLISHED = CounterSpec(
    "moonpool_kv_events_published_total", "Keys announced, by tier and change.", ("tier", "change")
)
LOOP_LAG_SECONDS = GaugeSpec(
    "moonpool_loop_lag_seconds", "How late the event loop was at the last look."
)
PROCESS_RSS_BYTES = GaugeSpec("moonpool_process_resident_bytes", "Resident memory.")
PROCESS_CPU_SECONDS = GaugeSpec("moonpool_process_cpu_seconds", "CPU time used since start.")
INFO = GaugeSpec("moonpool_info", "Always 1.", ("service", "id", "version"))
UNHANDLED_ERRORS = CounterSpec(
    "moonpool_unhandled_errors_total", "Errors caught at the top, by place.", ("where",)
)
SERIES_OVERFLOW = CounterSpec(
    "moonpool_metrics_overflow_total",
    "Observations counted under `other` because a metric had too many sets of labels.",
)

ALL: tuple[Spec, ...] = tuple(
    value
    for value in list(globals().values())
    if isinstance(value, CounterSpec | GaugeSpec | HistogramSpec)
)
