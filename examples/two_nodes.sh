#!/usr/bin/env bash
# Two Ray nodes in two network namespaces of this machine run the main job: learner and buffer on the first node, actors
# and envs on the second one. Needs Linux, root, and iproute2.
#
#   sudo examples/two_nodes.sh [PRESET] [key=value ...]
#
# BIN is where rlightning and ray are; a virtual environment that is active needs nothing.
set -euo pipefail

preset=${1:-ppo_cartpole}
[ $# -gt 0 ] && shift
bin=${BIN:-$(dirname "$(command -v rlightning)")}
here=rl-here-$$ there=rl-there-$$
started=()

cleanup() {
    for pid in "${started[@]}"; do kill -TERM "$pid" 2>/dev/null || true; done
    for pid in "${started[@]}"; do wait "$pid" 2>/dev/null || true; done
    ip netns del "$here" 2>/dev/null || true
    ip netns del "$there" 2>/dev/null || true
}
trap cleanup EXIT

ip netns add "$here"
ip netns add "$there"
ip link add "h$$" netns "$here" type veth peer name "t$$" netns "$there"
ip -n "$here" addr add 10.99.0.1/24 dev "h$$"
ip -n "$there" addr add 10.99.0.2/24 dev "t$$"
for pair in "$here h$$" "$there t$$"; do
    read -r namespace device <<< "$pair"
    ip -n "$namespace" link set lo up
    ip -n "$namespace" link set "$device" up
done

# --block keeps each node's processes under the one that is ended above; `ray stop` would end every Ray of this machine.
ray_node() {
    local namespace=$1
    shift
    ip netns exec "$namespace" "$bin/ray" start --block --num-cpus=8 --disable-usage-stats --object-store-memory=200000000 "$@" \
        > /dev/null 2>&1 &
    started+=($!)
}
ray_node "$here" --head --port=6379 --node-ip-address=10.99.0.1 --include-dashboard=false
until ip netns exec "$here" "$bin/ray" health-check --address 10.99.0.1:6379 2>/dev/null; do sleep 1; done
ray_node "$there" --address=10.99.0.1:6379 --node-ip-address=10.99.0.2
until ip netns exec "$here" "$bin/python" - 2>/dev/null <<'END'
import ray
ray.init("10.99.0.1:6379", logging_level="ERROR")
assert len([node for node in ray.nodes() if node["Alive"]]) == 2
END
do sleep 1; done

echo "two nodes are up: 10.99.0.1 and 10.99.0.2"
ip netns exec "$here" "$bin/rlightning" train "$preset" cluster=ray cluster.ray_address=10.99.0.1:6379 \
    cluster.placement.strategy=disaggregate cluster.eval_worker_num=2 env.num_workers=2 log.progress=false "$@"
