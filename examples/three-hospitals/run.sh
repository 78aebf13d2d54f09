#!/usr/bin/env bash
# One study centre and three hospitals as separate processes on this machine, over mutual TLS: from nothing
# to a finished masked study. Every command is shown before it runs; at the end they are counted.
#
#   examples/three-hospitals/run.sh [FOLDER]      FOLDER is new; default runs/three-hospitals
#
#   SECFED=...      the secfed command (default: .venv/bin/secfed of this repository, else from PATH)
#   PORT=...        TCP port of the aggregator on 127.0.0.1 (default 8443)
#   STUDY=...       study file (default: study.toml beside this script)
#   POLICY=...      the hospitals' policy (default: policy.toml beside this script)
#   AGENT_OPTIONS=  more options for `secfed agent run`
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=${1:-runs/three-hospitals}
port=${PORT:-8443}
study=${STUDY:-$here/study.toml}
policy=${POLICY:-$here/policy.toml}
hospitals=(hospital-1 hospital-2 hospital-3)
if [ -z "${SECFED:-}" ]; then
    SECFED=$here/../../.venv/bin/secfed
    [ -x "$SECFED" ] || SECFED=$(command -v secfed) || { echo "no secfed: run make setup, or set SECFED=" >&2; exit 1; }
fi
# Four processes on one machine: with more threads each they only wait for one another.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

[ ! -e "$work" ] || { echo "$work is there already: name a new folder" >&2; exit 1; }
mkdir -p "$work"
work=$(cd "$work" && pwd)
centre=$work/centre

declare -A counted=()
show() { # PARTY ARGUMENT...
    local party=$1
    shift
    counted[$party]=$((${counted[$party]:-0} + 1))
    printf '\n%s %d $ secfed %s\n' "$party" "${counted[$party]}" "$*"
}
run() { # PARTY ARGUMENT...
    show "$@"
    shift
    "$SECFED" "$@"
}

agents=()
stop_agents() {
    local pid
    for pid in "${agents[@]}"; do kill -TERM "$pid" 2>/dev/null || true; done
    for pid in "${agents[@]}"; do wait "$pid" 2>/dev/null || true; done
    agents=()
}
trap stop_agents EXIT
trap 'exit 130' INT TERM

# 1. Keys, on every machine; nothing below needs a network before step 4.
run centre consortium init "$centre" --name "Three hospitals" --aggregator-host localhost --port "$port"
for name in "${hospitals[@]}"; do
    run "$name" site init "$work/$name" --name "$name"
    # The administrator writes down what studies may do; here a file stands for the administrator.
    install -m 600 "$policy" "$work/$name/policy.toml"
    # Three agents share this machine, and one port is for one of them: no metrics here.
    sed -i 's/^# metrics_port = .*/metrics_port = 0/' "$work/$name/site.toml"
done

# 2. The study centre admits. --yes says that the fingerprints above were compared, by telephone.
requests=()
for name in "${hospitals[@]}"; do requests+=("$work/$name/request.json"); done
show centre consortium admit "${requests[@]}" --dir "$centre" --yes
"$SECFED" consortium admit "${requests[@]}" --dir "$centre" --yes | tee "$work/admitted.txt"
digest=$(sed -n 's/^Roster .*, digest //p' "$work/admitted.txt" | tr -d ' ')

# 3. Hospitals join, and pin the roster whose digest was read to them.
for name in "${hospitals[@]}"; do
    run "$name" site join "$centre/replies/$name.json" --dir "$work/$name" \
        --roster "$centre/roster.json" --fingerprint "$digest"
done

# 4. Agents dial out; the study centre runs the study and ends when it is finished.
for name in "${hospitals[@]}"; do
    # shellcheck disable=SC2206 # options are words
    options=(${AGENT_OPTIONS:-})
    show "$name" agent run "$work/$name" "${options[@]}"
    "$SECFED" agent run "$work/$name" "${options[@]}" >"$work/$name.log" 2>&1 &
    agents+=($!)
done
# --silent: on a busy machine an agent may need minutes to get its first training process going.
run centre aggregate "$study" --consortium "$centre" --out "$work/run" --listen "127.0.0.1:$port" \
    --quorum "${#hospitals[@]}" --silent 300
stop_agents

printf '\nCommands: '
for party in centre "${hospitals[@]}"; do printf '%s %d  ' "$party" "${counted[$party]}"; done
printf '\nThe model and the record of the study are in %s\n' "$work/run"
