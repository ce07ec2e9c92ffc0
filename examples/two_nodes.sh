#!/usr/bin/env bash
# Two nodes on one machine: each Ray lives in a network namespace of its own, so that all that they exchange goes over a
# network between 10.77.0.1 and 10.77.0.2. Runs a short training over both, and the same one in this process, whose
# numbers must be equal. Linux, as root, with `ray` and `rlightning` on the path (a virtual environment that is active):
#
#   sudo --preserve-env=PATH examples/two_nodes.sh [overrides of the run, such as seed=1]
#
# RUNS=FOLDER keeps the folders of the runs there.
# `ray stop` would end every Ray of the machine: here just the processes of the two namespaces are ended.
set -euo pipefail

work=$(mktemp -d /tmp/two.XXXXXX)  # a short path, since those of sockets are limited to 107 bytes
runs=${RUNS:-$work/runs}

clean_up() {
    for node in two-a two-b; do
        ip netns pids "$node" 2>/dev/null | xargs -r kill -9 || true
        ip netns delete "$node" 2>/dev/null || true
    done
    rm -rf "$work"
}
trap clean_up EXIT

# A namespace comes with nothing but a loopback that is down. The default route leads nowhere; by it Ray finds out which
# address is its own.
ip netns add two-a
ip netns add two-b
ip link add eth-a netns two-a type veth peer name eth-b netns two-b
for side in a:1:2 b:2:1; do
    IFS=: read -r node own other <<<"$side"
    ip -n "two-$node" link set lo up
    ip -n "two-$node" address add "10.77.0.$own/24" dev "eth-$node"
    ip -n "two-$node" link set "eth-$node" up
    ip -n "two-$node" route add default via "10.77.0.$other"
done

# Nobody else reaches the two, so that they need no token; and there is no name server, which nobody should wait for.
export RAY_AUTH_MODE=disabled RAY_USAGE_STATS_ENABLED=0 RAY_agent_register_timeout_ms=120000
export RES_OPTIONS="timeout:1 attempts:1"
common=(--num-cpus=4 --object-store-memory=200000000 --disable-usage-stats)
ip netns exec two-a ray start --head --port=6379 --node-ip-address=10.77.0.1 --temp-dir="$work/ray" \
    --include-dashboard=false "${common[@]}" >"$work/head.txt" 2>&1 || { cat "$work/head.txt"; exit 1; }
ip netns exec two-b ray start --address=10.77.0.1:6379 --node-ip-address=10.77.0.2 \
    "${common[@]}" >"$work/node.txt" 2>&1 || { cat "$work/node.txt"; exit 1; }

short=(ppo_halfcheetah env.num_workers=2 train.max_epochs=3 train.max_rollout_steps=64 train.batch_size=64
    evaluation.episodes=1 evaluation.num_envs=1 "train.save_dir=$runs" log.progress=false "log.backend=[]" "$@")
ip netns exec two-a rlightning train "${short[@]}" log.name=two_nodes cluster=ray cluster.ray_address=10.77.0.1:6379 \
    cluster.placement.strategy=disaggregate cluster.eval_worker_num=2
rlightning train "${short[@]}" log.name=one_process cluster.eval_worker_num=2

python - "$runs" <<'PYTHON'
import json, pathlib, sys, yaml

runs = pathlib.Path(sys.argv[1])
print("\nwho sat where:")
for slot in yaml.safe_load((runs / "two_nodes" / "plan.yaml").read_text())["slots"]:
    print(f"  {slot['worker']:<12} {slot['node']}")
rows = {}
for name in ("two_nodes", "one_process"):
    lines = (runs / name / "metrics.jsonl").read_text().splitlines()
    rows[name] = [{k: v for k, v in json.loads(line).items() if "time" not in k} for line in lines]
print("the numbers of both runs are equal:", rows["two_nodes"] == rows["one_process"])
sys.exit(rows["two_nodes"] != rows["one_process"])
PYTHON
