#!/usr/bin/env bash
# Probes nodes before a run starts on them: device counts, counters at rest, every EFA device over
# loopback, and every pair. Needs ssh to all nodes, and libfabric's fi_pingpong on them.
#
#   probe.sh OUT NODE NODE…
#   manage.py preflight OUT --instance trn2.48xlarge --take 12
#
# Writes one file per pair and device to OUT, named as `manage.py preflight` reads them. In each
# round a node is in one pair only, so that probes do not disturb each other. Environment:
# PINGPONG (the command), TIMES (runs of each pair), REST_S (seconds between counter readings),
# HEAD_START_S (delay of the client after the server), NEURON_SYSFS and EFA_SYSFS.
set -euo pipefail

(($# >= 2)) || { sed -n '5,6p' "$0" >&2; exit 2; }
out=$1
shift
nodes=("$@")
pingpong=${PINGPONG:-fi_pingpong -e rdm -p efa}
times=${TIMES:-5}
rest_s=${REST_S:-30}
head_start_s=${HEAD_START_S:-1}
neuron=${NEURON_SYSFS:-/sys/devices/virtual/neuron_device}
efa=${EFA_SYSFS:-/sys/class/infiniband}
mkdir -p "$out"

# Runs on the node: device counts, and counters that change while nothing runs.
counts="
total() { cat \"\$@\" 2>/dev/null | awk '{ n += \$1 } END { printf \"%d\", n }'; }
counter() { total $efa/*/ports/1/hw_counters/\$1; }
names='rx_drops retrans_pkts retrans_timeout_events impaired_remote_conn_events unresponsive_remote_events'
before=; for name in \$names; do before=\"\$before \$(counter \$name)\"; done
sleep $rest_s
rest=
for name in \$names; do
  was=\${before# }; was=\${was%% *}; before=\${before# }; before=\${before#\"\$was\"}
  rest=\"\$rest, \\\"\$name\\\": \$((\$(counter \$name) - was))\"
done
printf '{\"n_devices\": %d, \"n_efa\": %d, \"rest_s\": %s, \"ecc_uncorrected\": %d, \"rest\": {%s}}\n' \
  \$(ls -d $neuron/neuron[0-9]* 2>/dev/null | wc -l) \$(ls -d $efa/* 2>/dev/null | wc -l) $rest_s \
  \$(total $neuron/neuron*/stats/hardware/*_ecc_uncorrected*) \"\${rest#, }\"
"

# probe FILE SERVER CLIENT OPTIONS…: one ping-pong; an unreachable node gives 'no answer'.
probe() {
  local file=$1 server=$2 client=$3
  shift 3
  ssh -n "$server" "FI_EFA_ENABLE_SHM_TRANSFER=0 timeout 60 $pingpong $*" >/dev/null 2>&1 &
  sleep "$head_start_s"
  ssh -n "$client" "FI_EFA_ENABLE_SHM_TRANSFER=0 timeout 60 $pingpong $* $server" >"$file" 2>&1 ||
    echo "no answer" >>"$file"
  wait $! || true
}

devices_of() {
  local device n=0
  for device in $(ssh -n "$1" "ls $efa"); do
    probe "$out/device__$1__$n.txt" "$1" "$1" -d "$device-rdm"
    n=$((n + 1))
  done
}

pair() {
  local k
  for ((k = 1; k <= times; k++)); do
    probe "$out/pair__$1__$2__$k.txt" "$1" "$2"
  done
}

for node in "${nodes[@]}"; do
  ssh -n "$node" "$counts" >"$out/node__$node.json" &
done
wait
for node in "${nodes[@]}"; do devices_of "$node" & done
wait

# Round-robin by the circle method: all but the first rotate; an empty entry is a bye.
ring=("${nodes[@]}")
((${#ring[@]} % 2)) && ring+=("")
seats=${#ring[@]}
for ((round = 1; round < seats; round++)); do
  for ((i = 0; i < seats / 2; i++)); do
    one=${ring[i]} other=${ring[seats - 1 - i]}
    if [[ -n $one && -n $other ]]; then pair "$one" "$other" & fi
  done
  wait
  echo "round $round of $((seats - 1))" >&2
  ring=("${ring[0]}" "${ring[seats - 1]}" "${ring[@]:1:seats-2}")
done
