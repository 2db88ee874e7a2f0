#!/usr/bin/env bash
# Every experiment of the papers, by name: trains what is missing, then writes its table or figures.
# First the experiments and all settings, as tables; then how runs are made of them; then the launchers.
set -euf -o pipefail

usage() {
    cat <<'EOF'
./benchmark.sh                     lists the experiments
./benchmark.sh NAME [OPTION ...]   runs one to the end; again: only what is missing

  --seeds N                 seeds 1 to N (default: the experiment's)
  --env-version v4|v5       of the environments (default: v5)
  --envs ENV ...            environments (default: the experiment's), such as Hopper Walker2d
  --steps N                 environment steps of a run (default: the experiment's)
  --jobs N                  runs at once (default: one a core; with slurm: as many as the cluster starts)
  --launcher local          on this machine
             slurm          as one job array, and its results as a job that waits for it
             print          print the commands, for any other launcher
             none           train nothing: the results of what is finished
  --out DIR                 tables, figures and logs (default: results/NAME-VERSION)
  --runs-dir DIR            run folders, which experiments share (default: runs; of smoke: inside --out)
EOF
}

# Experiments ----------------------------------------------------------------------------------------------------------

# name                | source           | seeds | steps | environments      | question
EXPERIMENTS='
step-or-optimizations | IM Table 2       | 10    | 1M    | IM                | PPO or TRPO, or their optimizations?
clipping              | IM Table 3       | 10    | 1M    | IM                | the same, and PPO without clipping
ablation              | IM Fig. 1        | 5     | 1M    | Humanoid Walker2d | four optimizations x four learning rates
leave-one-out         | ours             | 5     | 1M    | Hopper            | what is each of the nine worth?
definition            | IM Table 1       | 10    | 1M    | IM                | PPO-M, TRPO: as released, as defined
kl-schedule           | IM sec. 5        | 10    | 1M    | IM                | TRPO+ with constant delta, with schedule
trust-region          | IM Fig. 2-4, TPG | 3     | 1M    | IM                | how far do steps go?
gradients             | CL Fig. 1, 2, 4  | 3     | 1M    | IM                | do gradient estimates mean anything?
values                | CL Fig. 3        | 3     | 1M    | IM                | are values predicted?
landscapes            | CL Fig. 5-7      | 1     | 1M    | IM                | does the surrogate know the reward?
algorithms            | GUIDE Fig. 4, 5  | 3     | 8M    | GUIDE             | five algorithms
entropy               | GUIDE Fig. 6     | 3     | 8M    | HalfCheetah       | entropy coefficients of A2C
epochs                | GUIDE Fig. 7     | 3     | 1M    | HalfCheetah       | A2C and REINFORCE with 1 and 5 epochs
smoke                 | ours             | 1     | 1024  | Hopper            | does all of the above work? cut down
'
IM_ENVS='Walker2d Hopper Humanoid'
GUIDE_ENVS='HalfCheetah Ant Humanoid Hopper'
declare -A AGENTS_OF=( # see Agents, below
    [step-or-optimizations]='PPO PPO-M TRPO TRPO+'
    [clipping]='PPO PPO-M TRPO TRPO+ PPO-NoClip'
    [definition]='PPO-M PPO-M-defined TRPO TRPO-defined'
    [kl-schedule]='TRPO+ TRPO+schedule'
    [trust-region]='PPO PPO-M PPO-NoClip TRPO'
    [gradients]='CL-PPO TRPO'
    [values]='CL-PPO TRPO'
    [landscapes]='CL-PPO TRPO'
    [algorithms]='REINFORCE A2C GUIDE-TRPO GUIDE-PPO V-MPO'
    [entropy]='A2C A2C-entropy-0.01 A2C-entropy-0'
    [epochs]='A2C A2C-5-epochs REINFORCE REINFORCE-5-epochs'
)
declare -A RESULTS=( # from which of diagnostics/; where nothing stands here: rewards
    [step-or-optimizations]='rewards --aai PPO PPO-M TRPO TRPO+'
    [clipping]='rewards --aai PPO PPO-M TRPO TRPO+'
    [ablation]='rewards --best-of policy_lr --histograms value_clip reward_scale orthogonal_init anneal_lr'
    [leave-one-out]='rewards --paired'
    [trust-region]='trust_region'
    [gradients]='gradient --baselines --steps'
    [values]='value'
    [landscapes]='landscape --concentration 2000 20000 100000'
    [algorithms]=$'rewards\nevaluate --deterministic --episodes 10'
)

# Settings: environment (none: all) | flags, even where they are the defaults of the script ----------------------------

# Implementation Matters (IM), Tables 4 to 6, and what the released configurations add: value clip, initialization,
# annealing. Of gradients the released code clips the policy's alone, and in TRPO+ nothing: so do these, since that gave
# the papers' numbers.
IM='
         | --num-envs 1 --num-steps 2048 --num-minibatches 32 --value-epochs 10 --gamma 0.99
         | --policy-hidden 64 64 --value-hidden 64 64 --entropy-coef 0
'
PPO_STEP='| --policy-epochs 10 --clip-eps 0.2'
TRPO_STEP='| --fisher-fraction 0.1 --cg-steps 10 --cg-damping 0.1 --backtrack-steps 10 --backtrack-ratio 0.5'
PPO='
         | --gae-lambda 0.95 --reward-scale --reward-scale-by returns --orthogonal-init --anneal-lr --tanh
         | --reward-clip --reward-clip-range 10 --obs-norm --obs-clip --obs-clip-range 10
         | --no-grad-clip --no-value-grad-clip
Walker2d | --policy-lr 4e-4     --value-lr 3e-4    --value-clip
Humanoid | --policy-lr 1.5e-4   --value-lr 1e-4    --value-clip
Hopper   | --policy-lr 3e-4     --value-lr 2.5e-4  --no-value-clip
'
PPO_M='
         | --gae-lambda 0.95
Walker2d | --policy-lr 1e-4     --value-lr 2e-4
Humanoid | --policy-lr 9e-5     --value-lr 4e-4
Hopper   | --policy-lr 1.7e-4   --value-lr 4e-4
'
# Observations are clipped as in the released configurations; the table prints 30 for Walker2d and 2.5 for Hopper.
PPO_NOCLIP='
         | --policy-epochs 10 --reward-scale --reward-clip --obs-norm --tanh --grad-clip --no-value-grad-clip
Walker2d | --policy-lr 7.25e-5  --value-lr 6e-4    --gae-lambda 0.85   --entropy-coef -0.01
Humanoid | --policy-lr 2e-5     --value-lr 5e-5    --gae-lambda 0.85   --entropy-coef 0.005
Hopper   | --policy-lr 6e-5     --value-lr 4e-4    --gae-lambda 0.925  --entropy-coef -0.005
Walker2d | --reward-scale-by rewards  --reward-clip-range 30   --no-obs-clip                   --max-grad-norm 0.1
Humanoid | --reward-scale-by returns  --reward-clip-range 10   --obs-clip --obs-clip-range 10  --max-grad-norm 0.5
Hopper   | --reward-scale-by rewards  --reward-clip-range 2.5  --obs-clip --obs-clip-range 10  --max-grad-norm 4
Walker2d | --no-value-clip  --orthogonal-init     --anneal-lr
Humanoid | --value-clip     --no-orthogonal-init  --no-anneal-lr
Hopper   | --no-value-clip  --orthogonal-init     --anneal-lr
'
TRPO='
         | --gae-lambda 0.95
Walker2d | --max-kl 0.04        --value-lr 3e-4
Humanoid | --max-kl 0.07        --value-lr 3e-4
Hopper   | --max-kl 0.13        --value-lr 2e-4
'
# The table's largest gradient norms, which clipped nothing: Walker2d 1, Humanoid 0.5, Hopper 1.
TRPO_PLUS='
         | --reward-scale --reward-scale-by returns --reward-clip --reward-clip-range 10 --no-anneal-lr --tanh
         | --obs-norm --obs-clip --obs-clip-range 10 --no-grad-clip
Walker2d | --max-kl 0.07  --value-lr 1e-4  --gae-lambda 0.95  --no-value-clip  --orthogonal-init
Humanoid | --max-kl 0.1   --value-lr 5e-5  --gae-lambda 0.85  --value-clip     --no-orthogonal-init
Hopper   | --max-kl 0.04  --value-lr 2e-4  --gae-lambda 0.95  --no-value-clip  --orthogonal-init
'
# Of the paper's schedule, which the released code configured and did not run.
KL_SCHEDULE='
Walker2d | --max-kl-final 0.04
Humanoid | --max-kl-final 0.05
Hopper   | --max-kl-final 0.07
'
# PPO-M and TRPO have none of the nine by definition; as released, and in the paper's numbers, they kept two.
AS_RELEASED='
         | --no-value-clip --no-reward-scale --no-orthogonal-init --no-anneal-lr --no-reward-clip
         | --obs-norm --no-obs-clip --tanh --no-grad-clip
'
# A Closer Look (CL), Table 1: its PPO has rates of its own, its TRPO is IM's.
CL_PPO='
Walker2d | --policy-lr 4e-4     --value-lr 3e-4
Humanoid | --policy-lr 2.5e-4   --value-lr 1e-4
Hopper   | --policy-lr 4.5e-4   --value-lr 2e-4
'
# The Definitive Guide (GUIDE), Table 2 and Appendix A. It names neither a value clip nor an initialization: off.
GUIDE='
| --num-envs 8 --num-steps 2048 --num-minibatches 8 --gamma 0.99 --no-anneal-lr --no-orthogonal-init
| --policy-hidden 32 32 32 32 --no-tanh --activation-without-tanh silu --squash-action --entropy-coef 0
| --obs-norm --obs-clip --obs-clip-range 10 --reward-scale --reward-scale-by returns
| --reward-clip --reward-clip-range 10 --grad-clip --max-grad-norm 0.5
'
GUIDE_VALUE='| --value-hidden 256 256 256 256 256 --value-lr 3e-4 --gae-lambda 0.95 --no-value-clip'
GUIDE_REINFORCE='| --num-envs 1 --num-minibatches 1 --policy-lr 3e-4 --policy-epochs 1 --baseline none'
GUIDE_A2C='| --policy-lr 3e-4 --policy-epochs 1 --value-epochs 1 --value-grad-clip --entropy-coef 0.1'
GUIDE_TRPO='| --value-epochs 10 --max-kl 0.01 --cg-steps 10 --cg-damping 0.1 --backtrack-steps 10 --backtrack-ratio 0.8'
GUIDE_PPO='| --policy-lr 3e-4 --policy-epochs 10 --value-epochs 10 --value-grad-clip --clip-eps 0.2'
GUIDE_VMPO='
| --policy-lr 3e-4 --policy-epochs 10 --value-epochs 10 --value-grad-clip
| --eps-temperature 0.01 --eps-mean 0.01 --eps-std 5e-5
'

# Agents: name, script, settings; a later setting replaces an earlier one ----------------------------------------------

declare -A AGENT
agent() { printf -v "AGENT[$1]" '%s\n' "${@:2}"; }
agent PPO                 ppo         "$IM" "$PPO_STEP" "$PPO"
agent PPO-M               ppo         "$IM" "$PPO_STEP" "$PPO_M" "$AS_RELEASED" '| --no-value-grad-clip'
agent PPO-M-defined       ppo_m       "$IM" "$PPO_STEP" "$PPO_M"
agent PPO-NoClip          ppo_noclip  "$IM" "$PPO_NOCLIP"
agent TRPO                trpo_plus   "$IM" "$TRPO_STEP" "$TRPO" "$AS_RELEASED"
agent TRPO-defined        trpo        "$IM" "$TRPO_STEP" "$TRPO"
agent TRPO+               trpo_plus   "$IM" "$TRPO_STEP" "$TRPO_PLUS"
agent TRPO+schedule       trpo_plus   "$IM" "$TRPO_STEP" "$TRPO_PLUS" "$KL_SCHEDULE"
agent CL-PPO              ppo         "$IM" "$PPO_STEP" "$PPO" "$CL_PPO"
agent REINFORCE           reinforce   "$GUIDE" "$GUIDE_REINFORCE"
agent REINFORCE-5-epochs  reinforce   "$GUIDE" "$GUIDE_REINFORCE" '| --policy-epochs 5'
agent A2C                 a2c         "$GUIDE" "$GUIDE_VALUE" "$GUIDE_A2C"
agent A2C-5-epochs        a2c         "$GUIDE" "$GUIDE_VALUE" "$GUIDE_A2C" '| --policy-epochs 5 --value-epochs 5'
agent A2C-entropy-0.01    a2c         "$GUIDE" "$GUIDE_VALUE" "$GUIDE_A2C" '| --entropy-coef 0.01'
agent A2C-entropy-0       a2c         "$GUIDE" "$GUIDE_VALUE" "$GUIDE_A2C" '| --entropy-coef 0'
agent GUIDE-TRPO          trpo_plus   "$GUIDE" "$GUIDE_VALUE" "$GUIDE_TRPO"
agent GUIDE-PPO           ppo         "$GUIDE" "$GUIDE_VALUE" "$GUIDE_PPO"
agent V-MPO               vmpo        "$GUIDE" "$GUIDE_VALUE" "$GUIDE_VMPO"

# IM says "a grid of learning rates"; here of the policy's, the value network keeps PPO's.
for flags in {--,--no-}anneal-lr\ {--,--no-}orthogonal-init\ {--,--no-}reward-scale\ {--,--no-}value-clip; do
    for rate in 1e-4 2.5e-4 5e-4 1e-3; do
        agent "PPO${flags// /}-$rate" ppo "$IM" "$PPO_STEP" "$PPO" "| $flags --policy-lr $rate"
        AGENTS_OF[ablation]+=" PPO${flags// /}-$rate"
    done
done

on='--value-clip --reward-scale --orthogonal-init --anneal-lr --reward-clip --obs-norm --obs-clip --tanh --grad-clip'
on+=' --value-grad-clip' # the ninth too, of the other network: switched together
off=${on//--/--no-}
agent all ppo "$IM" "$PPO_STEP" "$PPO" "| $on"
agent none ppo "$IM" "$PPO_STEP" "$PPO" "| $off"
AGENTS_OF[leave-one-out]='all none'
for flag in ${on% *}; do
    flags=${flag/#--grad-clip/--grad-clip --value-grad-clip}
    agent "without-${flag#--}" ppo "$IM" "$PPO_STEP" "$PPO" "| $on ${flags//--/--no-}"
    agent "only-${flag#--}" ppo "$IM" "$PPO_STEP" "$PPO" "| $off $flags"
    AGENTS_OF[leave-one-out]+=" without-${flag#--} only-${flag#--}"
done

# Runs -----------------------------------------------------------------------------------------------------------------

train() { # AGENT: adds a run for each seed, in $env, of $steps
    local script=${AGENT[$1]%%$'\n'*} rows=${AGENT[$1]#*$'\n'}$smaller row_env flags word setting='' seed command
    local -A settings=()
    local -a order=()
    while IFS='|' read -r row_env flags; do
        [[ -z ${row_env// /} || ${row_env// /} == "$env" ]] || continue
        for word in $flags; do
            if [[ $word == --* ]]; then
                setting=${word#--} setting=${setting#no-}
                [[ ${settings[$setting]+known} ]] || order+=("$setting")
                settings[$setting]=$word
            else
                settings[$setting]+=" $word"
            fi
        done
    done <<<"$rows"
    for ((seed = 1; seed <= seeds; seed++)); do
        printf -v command 'python %q --env-id %s' "${here}algos/$script.py" "$env-$env_version"
        command+=" --seed $seed --total-timesteps $steps"
        for setting in "${order[@]}"; do command+=" ${settings[$setting]}"; done
        [[ $runs_dir == runs ]] || printf -v command '%s --runs-dir %q' "$command" "$runs_dir"
        [[ ${GROUP[$command]+known} ]] || COMMANDS+=("$command")
        GROUP[$command]=$env-$env_version/$1
    done
}

choose() { # EXPERIMENT: the COMMANDS of its runs, and of each its GROUP: environment and agent
    local row_seeds row_steps row_envs env agent
    IFS=' |' read -r row_seeds row_steps row_envs <<<"${EXPERIMENT[$1]#*|}"
    row_envs=${row_envs%%|*} row_envs=${row_envs/GUIDE/$GUIDE_ENVS}
    row_envs=${row_envs/IM/$IM_ENVS}
    local seeds=${seeds:-$row_seeds} steps=${steps:-${row_steps/M/000000}}
    COMMANDS=() GROUP=()
    for env in ${envs:-$row_envs}; do
        for agent in ${AGENTS_OF[$1]}; do train "$agent"; done
    done
}

cut_down() { # everything, for smoke
    local experiment
    local -a x
    smaller='| --num-envs 1 --num-steps 512 --num-minibatches 4 --checkpoint-every 1 --no-compile'
    read -ra x <<<"${AGENTS_OF["ablation"]}" && AGENTS_OF["ablation"]="${x[0]} ${x[3]} ${x[60]} ${x[63]}"
    read -ra x <<<"${AGENTS_OF["leave-one-out"]}" && AGENTS_OF["leave-one-out"]="${x[*]:0:6}"
    for experiment in gradients values landscapes; do AGENTS_OF[$experiment]=${AGENTS_OF[$experiment]%% *}; done
    for experiment in trust-region values; do RESULTS[$experiment]+=' --heldout-pairs 512'; done
    RESULTS["gradients"]='gradient --pairs 64 512 --repeats 2 --true-pairs 512 --baselines --value-pairs 512'
    RESULTS["gradients"]+=' --steps --step-repeats 2'
    RESULTS["landscapes"]='landscape --grid 2 --step-pairs 64 --reward-pairs 64 --concentration 32'
    for experiment in "${NAMES[@]}"; do AGENTS_OF["smoke"]+=" ${AGENTS_OF[$experiment]-}"; done
}

list() {
    local name source row_steps what total
    printf '%-22s %-17s %5s %6s\n' experiment source runs steps
    for name in "${NAMES[@]}"; do
        [[ $name != smoke ]] || cut_down
        IFS='|' read -r source _ row_steps _ what <<<"${EXPERIMENT[$name]}"
        choose "$name"
        row_steps=${row_steps// /}
        total=$((${#COMMANDS[@]} * ${row_steps/M/000000} / 1000))
        ((total < 1000)) && total+=k || total=$((total / 1000))M
        read -r source <<<"$source"
        printf '%-22s %-17s %5d %6s %s\n' "$name" "$source" ${#COMMANDS[@]} "$total" "$what"
    done
    printf '\nSteps: of the environments, all runs together. Sizes are the defaults; --help lists the options.\n'
}

# What a run is called, its script knows. Reads commands; writes of each the steps reached, in the newest checkpoint,
# and planned, its setting as diagnostics/rewards.py spells it, its folder.
INSPECT='
import contextlib, importlib, shlex, signal, sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.SIG_DFL)
sys.path[0] = sys.argv[1]
try:
    import torch, tyro
    from rewards import flag
except ImportError as error:
    sys.exit(f"benchmark.sh: {error}; pip install -r requirements.txt")

changed = 0
for command in sys.stdin:
    _, path, *flags = shlex.split(command)
    sys.path[0] = str(Path(path).parent)
    script = importlib.import_module(Path(path).stem)
    args = tyro.cli(script.Args, args=flags)
    if not script.planned_steps(args):
        sys.exit(f"benchmark.sh: --steps {args.total_timesteps}: less than one iteration of {path}")
    folder = Path(args.runs_dir) / script.default_run_name(args)
    checkpoint = dict(global_step=0, script=script.SCRIPT)
    for newest in sorted(folder.glob("checkpoints/iter_*.pt"))[-1:]:
        with contextlib.suppress(Exception):  # damaged: the run will say so
            checkpoint = torch.load(newest, weights_only=True)
    changed += checkpoint["script"] != script.SCRIPT
    others = {"env_id", "seed", "compile", *script.NOT_OF_THE_RUN}  # compile: the machine may have turned it off
    setting = [Path(path).stem, *(flag(k, x) for k, x in vars(args).items() if k not in others)]
    print(checkpoint["global_step"], script.planned_steps(args), " ".join(setting), folder, sep="\t")
if changed:
    print(f"benchmark.sh: note: of these runs, {changed} were made before their scripts changed", file=sys.stderr)
'
inspect() { # of each of COMMANDS all that; MISSING: those not finished
    local command lines reached planned setting folder
    command -v python >/dev/null || stop "no python here; activate the environment that has requirements.txt"
    lines=$(printf '%s\n' "${COMMANDS[@]}" | python -c "$INSPECT" "${here}diagnostics") || exit 2
    MISSING=()
    for command in "${COMMANDS[@]}"; do
        IFS=$'\t' read -r reached planned setting folder
        REACHED[$command]=$reached PLANNED[$command]=$planned SETTING[$command]=$setting FOLDER[$command]=$folder
        finished "$command" || MISSING+=("$command")
    done <<<"$lines"
}
finished() { ((${REACHED[$1]} >= ${PLANNED[$1]})); } # COMMAND
log_of() { echo "$out/logs/${FOLDER[$1]##*/}.log"; } # COMMAND

# Launchers ------------------------------------------------------------------------------------------------------------

launch_local() { # keeps $jobs of the MISSING going
    local next=0 i shown=$SECONDS begun=$SECONDS ended=0 failed=0 trained=0 left=0
    local -a need
    for i in "${!MISSING[@]}"; do
        need[i]=$((${PLANNED[${MISSING[i]}]} - ${REACHED[${MISSING[i]}]}))
        left=$((left + need[i]))
    done
    while ((next < ${#MISSING[@]} || ${#PIDS[@]})); do
        while ((next < ${#MISSING[@]} && ${#PIDS[@]} < jobs)); do
            (eval "exec ${MISSING[next]}") >"$(log_of "${MISSING[next]}")" 2>&1 &
            PIDS[next++]=$!
        done
        sleep 0.2
        for i in "${!PIDS[@]}"; do
            kill -0 "${PIDS[i]}" 2>/dev/null && continue
            left=$((left - need[i]))
            if wait "${PIDS[i]}"; then
                ended=$((ended + 1)) trained=$((trained + need[i]))
            else
                failed=$((failed + 1))
            fi
            unset 'PIDS[i]'
        done
        show
    done
}

show() { # launch_local's counts and the time left: in place on a terminal, else a line now and then
    local i step under_way=0 time='?' terminal=0
    [[ ! -t 2 ]] || terminal=1
    ((SECONDS - shown >= (terminal ? 1 : 30) || ${#PIDS[@]} == 0)) || return 0
    shown=$SECONDS
    for i in "${!PIDS[@]}"; do
        step=$(tail -n 1 "${FOLDER[${MISSING[i]}]}/progress.csv" 2>/dev/null | cut -d , -f 2) || true
        [[ $step =~ ^[0-9]+$ ]] || continue
        step=$((step - ${REACHED[${MISSING[i]}]}))
        under_way=$((under_way + (step > 0 ? step : 0)))
    done
    if ((trained + under_way)); then
        time=$(((SECONDS - begun) * (left - under_way) / (trained + under_way)))
        printf -v time '%d:%02d:%02d' $((time / 3600)) $((time / 60 % 60)) $((time % 60))
    fi
    ((terminal)) && printf '\r\033[K' >&2
    printf '%d of %d done, %d running, %d failed, %s left' $ended ${#MISSING[@]} ${#PIDS[@]} $failed "$time" >&2
    ((terminal && ${#PIDS[@]})) || echo >&2
}

# shellcheck disable=SC2317 # a trap calls it
interrupt() {
    trap '' TERM HUP
    trap - INT
    kill -TERM "${PIDS[@]}" 2>/dev/null || true
    wait
    echo >&2
    stop "interrupted; the same command goes on from the newest checkpoints" 130
}

launch_slurm() { # the MISSING as one job array, the results as a job that waits for it
    local command earlier array='' results limit
    local -a LOGS=()
    earlier=$(cat "$out/slurm.job" 2>/dev/null) || true
    [[ -z $earlier || -z $(squeue -h -j "$earlier" 2>/dev/null) ]] ||
        stop "job $earlier still trains; wait for it or scancel it"
    for command in "${MISSING[@]}"; do LOGS+=("$(log_of "$command")"); done
    # A user's SBATCH_* variables override #SBATCH lines, but not what is on the command line.
    if ((${#MISSING[@]})); then
        limit=$(scontrol show config | sed -n 's/^MaxArraySize *= *//p')
        ((${#MISSING[@]} <= ${limit:=1001})) ||
            stop "${#MISSING[@]} runs exceed this cluster's MaxArraySize, $limit; choose fewer --envs or --seeds"
        array=$(
            sbatch --parsable --array="0-$((${#MISSING[@]} - 1))${limit_of_jobs:+%$limit_of_jobs}" <<EOF
#!/usr/bin/env bash
#SBATCH --job-name=$name --requeue --open-mode=append --output="$out/slurm.log"
$(declare -p MISSING LOGS)
export OMP_NUM_THREADS=1
exec >>"\${LOGS[SLURM_ARRAY_TASK_ID]}" 2>&1
eval "exec \${MISSING[SLURM_ARRAY_TASK_ID]}"
EOF
        ) || stop "Slurm refused the job array"
        array=${array%%;*}
        echo "$array" >"$out/slurm.job"
    fi
    results=$(
        sbatch --parsable ${array:+--dependency="afterany:$array"} <<EOF
#!/usr/bin/env bash
#SBATCH --job-name=$name-results --requeue --open-mode=append --output="$out/slurm.log"
exec bash ${BASH_SOURCE[0]@Q} ${ARGUMENTS[*]@Q} --launcher none --jobs "\${SLURM_CPUS_ON_NODE:-1}"
EOF
    ) || stop "Slurm refused the job of the results"
    [[ -z $array ]] || echo "job $array: ${#MISSING[@]} runs"
    echo "job ${results%%;*}: the results${array:+, when they have ended}; what Slurm says: $out/slurm.log"
}

# Results --------------------------------------------------------------------------------------------------------------

results() { # EXPERIMENT DIR: its diagnostics
    local command env label status=0
    local -a begun=() labels=() call runs names
    local -A runs_in=() labels_in=() labelled=()
    for command in "${COMMANDS[@]}"; do
        [[ -f ${FOLDER[$command]}/config.json ]] || continue
        begun+=("${FOLDER[$command]}")
        env=${GROUP[$command]%/*} label="${GROUP[$command]#*/}=${SETTING[$command]}"
        [[ ${labelled[$label]+known} ]] || labels+=("$label")
        labelled[$label]=yes
        finished "$command" || continue
        runs_in[$env]+=${FOLDER[$command]}$'\n'
        [[ ${labelled[$env $label]+known} ]] || labels_in[$env]+=$label$'\n'
        labelled[$env $label]=yes
    done
    while read -ra call; do
        if [[ ${call[0]} == rewards ]]; then # which names what is not finished
            runs=(--out "$2" -- "${begun[@]}")
            [[ ${call[*]} == *--best-of* ]] || runs=(--labels "${labels[@]}" "${runs[@]}")
            ((${#begun[@]} == 0)) || diagnose "${call[@]}" "${runs[@]}" && continue
            status=1
            # Too little may be finished yet for what the experiment asks of it, but not for a table.
            ((${#call[@]} == 1)) || diagnose rewards "${runs[@]}" || true
            continue
        fi
        for env in "${!runs_in[@]}"; do
            mapfile -t runs <<<"${runs_in[$env]%$'\n'}"
            runs=(--jobs "$jobs" --out "$2/$env" -- "${runs[@]}")
            if [[ ${call[0]} != landscape ]]; then # which has figures for every run
                mapfile -t names <<<"${labels_in[$env]%$'\n'}"
                runs=(--labels "${names[@]}" "${runs[@]}")
            fi
            diagnose "${call[@]}" "${runs[@]}" || status=1
        done
    done <<<"${RESULTS[$1]-rewards}"
    return $status
}

diagnose() { # DIAGNOSTIC ARGUMENT ...: in the background, so that an interruption ends it
    local status=0
    python "${here}diagnostics/$1.py" "${@:2}" &
    PIDS=($!)
    wait "${PIDS[0]}" || status=$?
    PIDS=()
    return $status
}

report() { # names the MISSING
    local command log
    echo "benchmark.sh: ${#MISSING[@]} of ${#COMMANDS[@]} runs are not finished; the same command tries them again:"
    for command in "${MISSING[@]}"; do
        log=$(log_of "$command")
        echo "  ${GROUP[$command]}, ${FOLDER[$command]}"
        [[ ! -f $log ]] || echo "    $log: $(tail -n 1 "$log")"
    done
}

# Command line ---------------------------------------------------------------------------------------------------------

stop() { # MESSAGE [STATUS]
    printf 'benchmark.sh: %s\n' "$1" >&2
    exit "${2:-2}"
}

NUMBER='[1-9][0-9]{0,8}'
declare -A SPOKEN=([$NUMBER]='a whole number greater than 0' ['.+']='a folder')
declare -A RULES=([seeds]=$NUMBER [steps]=$NUMBER [jobs]=$NUMBER [env-version]='v4|v5' [out]='.+' [runs-dir]='.+')
RULES[launcher]='local|slurm|print|none'
parse() {
    local option rule
    while (($#)); do
        option=${1#--}
        case $1 in
        -h | --help) usage && exit ;;
        --envs)
            [[ ${2--} != -* ]] || stop "--envs: name one or more environments"
            while [[ ${2--} != -* ]]; do envs+=" $2" && shift; done
            [[ ${envs// /} ]] || stop "--envs: name one or more environments"
            ;;
        -*)
            rule=${RULES[${option:-none}]-}
            [[ $rule ]] || stop "unknown option $1; --help lists them"
            [[ ${2-} =~ ^($rule)$ ]] || stop "$1 ${2-}: must be ${SPOKEN[$rule]-${rule//|/, }}"
            printf -v "${option/-/_}" %s "$2"
            shift
            ;;
        *)
            [[ -z $name ]] || stop "one experiment at a time, not $name and $1"
            [[ $1 && ${EXPERIMENT[$1]+known} ]] || stop "unknown experiment $1; ./benchmark.sh lists them"
            name=$1
            ;;
        esac
        shift
    done
}

check_envs() { # an environment without a row in the tables has no settings
    local env known=$IM_ENVS
    [[ ${EXPERIMENT[$name]} != *GUIDE* ]] || known=$GUIDE_ENVS
    [[ $name != smoke ]] || known='Humanoid Hopper'
    for env in $envs; do
        [[ " $known " == *" $env "* ]] || stop "unknown environment $env; there are settings for $known"
    done
}

main() {
    local status=0 row rest unfinished
    while IFS='|' read -r row rest; do
        [[ -z $row ]] || { NAMES+=("${row// /}") && EXPERIMENT[${row// /}]=$rest; }
    done <<<"$EXPERIMENTS"
    parse "$@"
    if [[ -z $name ]]; then
        (($# == 0)) || stop "name an experiment; ./benchmark.sh lists them"
        list && exit
    fi
    check_envs
    : "${out:=results/$name-$env_version}"
    if [[ $name == smoke ]]; then
        cut_down
        : "${seeds:=1}" "${steps:=1024}" "${envs:=Hopper}" "${runs_dir:=$out/runs}"
    fi
    : "${runs_dir:=runs}"
    choose "$name"
    [[ $launcher != print ]] || { printf '%s\n' "${COMMANDS[@]}" && exit; }
    [[ $launcher != slurm ]] || command -v sbatch >/dev/null || stop "no Slurm on this machine: there is no sbatch"

    mkdir -p "$out/logs" 2>/dev/null || stop "--out $out: cannot write there"
    limit_of_jobs=$jobs
    : "${jobs:=$(env -u OMP_NUM_THREADS nproc)}" # nproc heeds that variable
    export OMP_NUM_THREADS=1
    trap interrupt INT TERM HUP
    inspect
    echo "$name: ${#COMMANDS[@]} runs, $((${#COMMANDS[@]} - ${#MISSING[@]})) of them finished" >&2
    case $launcher in
    slurm) launch_slurm && exit ;;
    local) ((${#MISSING[@]} == 0)) || { launch_local && inspect; } ;;
    esac
    unfinished=$(report)
    if [[ $name == smoke ]]; then
        jobs=1 # starting workers would take longer than the work
        for name in "${NAMES[@]}"; do
            [[ $name == smoke ]] || { choose "$name" && results "$name" "$out/$name"; } || status=1
        done
    else
        results "$name" "$out" || status=1
    fi
    ((${#MISSING[@]} == 0)) || { echo "$unfinished" >&2 && status=1; }
    exit $status
}

declare -A EXPERIMENT=() GROUP=() REACHED=() PLANNED=() SETTING=() FOLDER=()
NAMES=() COMMANDS=() MISSING=() PIDS=() ARGUMENTS=("$@")
name='' seeds='' env_version=v5 envs='' steps='' jobs='' launcher=local out='' runs_dir='' smaller=''
here=${BASH_SOURCE[0]%"${BASH_SOURCE[0]##*/}"} here=${here#./}
main "$@"
