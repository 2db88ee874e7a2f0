"""How often is report.py right? Trains copies of the scripts with one bug each, and healthy scripts, has the report
judge them all, and counts what it finds, what it names, and whom it accuses wrongly.

    python tests/sabotage.py --out sabotage                # trains what is missing, judges it, counts
    python tests/sabotage.py --out sabotage --full none    # the quick reports alone

A bug is *found* if any verdict is caution or bad, and *named* if one of these verdicts says what it is, by the pattern
of the bug. A *false alarm* is such a verdict about a healthy run. The speed of a run is left out of all counts, because
it depends on what else the machine was doing. The thresholds of the report were chosen on seed 1 of the bugs marked
`tuning` and of the healthy runs; these runs are counted apart. The last four bugs and the stale actor are among them
because the report had missed them before it got checks that find them. One threshold, LITTLE of the critic, was chosen
later, on the full reports of seed 2, which is why the full reports of healthy runs are those of seed 3.

The bugs marked `new` were written when the checks for all others were final. Their runs begin with "new".

The result is OUT/sabotage.json, with every verdict. From it figures/claims.py makes the tables and the picture of
figures/report/README.md.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import tyro
from scipy import stats
from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
ENVS = "Hopper-v5", "HalfCheetah-v5"
LENGTH = "--total-timesteps 122_880 --checkpoint-every 15"  # 60 iterations of 2048 steps
IGNORED = "How fast was it?"
ALARMS = "caution", "bad"

# Bugs and healthy runs -----------------------------------------------------------------------------------------------


class Case(NamedTuple):
    name: str
    what: str
    pattern: str = ""  # of a verdict that names the bug; it is matched with "section: verdict (number)"
    edits: tuple[tuple[str, str], ...] = ()  # texts of the script that occur once, and what replaces them
    script: str = "ppo"  # of algos/, or sb3
    flags: str = ""
    tuning: bool = False  # whether thresholds were chosen on its seed 1
    new: bool = False  # whether it was written when the checks for the other bugs were final
    envs: tuple[str, ...] = ENVS
    seeds: tuple[int, ...] = (1, 2, 3)


COUNT = "    state.iteration += 1\n"
TARGETS = "value_targets=advantages + old_values"
MASK = """        if not ends[t]:
            advantages[t] += args.gamma * args.gae_lambda * advantages[t + 1]
"""
NOISE = "noise = std * state.rng.standard_normal("
STALE = "    policy_mean = numpy_forward(state.policy.mean)\n"
STEP = "terminated, truncated, _ = worker.env.step(action.copy())  # may change it\n"
ROW = "rows.append((obs, action, reward, next_obs, termination, end))"
SPACE = "worker.env.unwrapped.action_space"
RATIOS = 'ratios = torch.exp(pi.log_prob(batch["actions"]) - batch["old_log_probs"])'
OBSERVE = """        stats.push(obs)
        obs = (obs - stats.mean) / (stats.std + 1e-8)
"""

BUGS = [
    Case(
        "std-jump",
        "log_std rises by 1.5 in update 37",
        "iteration 3[67]|noise has grown",
        ((COUNT, f"    state.policy.log_std.data += 1.5 * (state.iteration == 37)\n{COUNT}"),),
        tuning=True,
    ),
    Case(
        "line-search",
        "TRPO+ takes 30 times its step in update 41",
        "iteration 41",
        (
            (
                "    nn.utils.vector_to_parameters(parameters, policy.parameters())\n    cg_",
                "    parameters = old + 30 * full_step if UPDATES == 41 else parameters\n"
                "    nn.utils.vector_to_parameters(parameters, policy.parameters())\n    cg_",
            ),
            ("    value_norm = ", "    global UPDATES\n    UPDATES = state.iteration\n    value_norm = "),
        ),
        script="trpo_plus",
    ),
    Case(
        "delta-signs",
        "delta = r - gamma V(s') + V(s)",
        "value targets|advantages",
        (
            (
                " + args.gamma * next_values.double().numpy() - old_",
                " - args.gamma * next_values.double().numpy() + old_",
            ),
        ),
        tuning=True,
    ),
    Case(
        "rewards-centered",
        "reward scaling subtracts the mean",
        "scaled rewards",
        (("reward = reward / (stats.std + 1e-8)", "reward = (reward - stats.mean) / (stats.std + 1e-8)"),),
    ),
    Case(
        "next-value-shifted",
        "delta takes V of the row after the next",
        "value targets|advantages",
        (("state.value(next_obs)\n", "state.value(next_obs).roll(-1)\n"),),
        tuning=True,
    ),
    Case(
        "targets-without-value",
        "value targets are the advantages",
        "value targets",
        ((TARGETS, "value_targets=advantages"),),
    ),
    Case(
        "terminals-bootstrapped",
        "V of a terminal state is not 0",
        "terminal",
        (('    next_values[torch.from_numpy(steps["terminations"])] = 0.0\n', ""),),
        tuning=True,
        envs=("Hopper-v5",),  # HalfCheetah has no terminal states
    ),
    Case(
        "gae-across-episodes",
        "GAE sums on into the next episode",
        "value targets|advantages",
        ((MASK, MASK.replace("not ends[t]", "True")),),
    ),
    Case(
        "critic-stops",
        "the value network is not fitted from iteration 20 on",
        "value network (has|did) not move",
        (
            (
                "value_fit = fit(args, state.value, ",
                "value = __import__('copy').deepcopy(state.value) if state.iteration >= 20 else state.value\n"
                "    value_fit = fit(args, value, ",
            ),
        ),
        tuning=True,
    ),
    Case(
        "statistics-forgotten",
        "the statistics of observations start again in iteration 41",
        "observations were reset",
        (
            (
                "            steps, episodes = rollout(args, state)\n",
                "            if state.iteration == 41:\n"
                "                state.obs_stats = RunningStats(np.zeros_like(state.obs_stats.mean))\n"
                "            steps, episodes = rollout(args, state)\n",
            ),
        ),
    ),
    Case(
        "rewards-x100",
        "the environment's rewards are 100 times as large from iteration 30 on",
        "does not earn what training logged|scale of the rewards",
        ((STEP, f"{STEP}            raw_reward = raw_reward * (100 if state.iteration >= 30 else 1)\n"),),
        tuning=True,
    ),
    Case(
        "same-noise",
        "every rollout acts with the same noise",
        "same noise|noise .*(same|repeat)",
        ((NOISE, "noise = std * np.random.default_rng(args.seed).standard_normal("),),
    ),
    Case(
        "not-shuffled",
        "minibatches are consecutive steps, in the same order in every epoch",
        "shuffle|minibatch",
        (('rng.permutation(len(batch["obs"]))[: args.num', 'np.arange(len(batch["obs"]))[: args.num'),),
        tuning=True,
    ),
    Case(
        "advantages-negated",
        "the surrogate has the wrong sign",
        "objective",
        (("ratios * advantages, clipped_ratios * advantages)", "-ratios * advantages, -clipped_ratios * advantages)"),),
    ),
    Case(
        "rates-x30",
        "both learning rates are 30 times as large",
        "too far|policy_lr",
        (
            ("policy_norm = args.policy_lr * lr_fraction", "policy_norm = 30 * args.policy_lr * lr_fraction"),
            ("value_norm = args.value_lr * lr_fraction", "value_norm = 30 * args.value_lr * lr_fraction"),
        ),
        tuning=True,
    ),
    Case("sb3-no-value-loss", "an agent of Stable-Baselines3 with vf_coef 0", "critic", script="sb3", flags="vf_coef"),
    Case(
        "batch-of-64",
        "iterations of 64 steps, one minibatch each",
        "Is the batch large enough",
        flags="--num-steps 64 --num-minibatches 1 --checkpoint-every 480",
        tuning=True,
    ),
    Case(
        "stale-actor",
        "actions come from the policy of the last checkpoint",
        "acted|log-prob",
        (
            (
                STALE,
                "    if state.iteration % args.checkpoint_every == 0:\n"
                "        state.workers[0].env.acting = numpy_forward(state.policy.mean)\n"
                "    policy_mean = state.workers[0].env.acting\n",
            ),
        ),
        tuning=True,
    ),
    Case(
        "log-ratio-clipped",
        "the clip acts on the log ratio, with the band of the ratio",
        "objective",
        (
            (
                "clipped_ratios = ratios.clamp(1 - args.clip_eps, 1 + args.clip_eps)",
                "clipped_ratios = ratios.log().clamp(1 - args.clip_eps, 1 + args.clip_eps).exp()",
            ),
        ),
        tuning=True,
    ),
    Case(
        "entropy-sign",
        "the entropy bonus of 0.01 is a penalty",
        "entropy bonus|objective",
        (("return -(surrogate + args.entropy_coef", "return -(surrogate - args.entropy_coef"),),
        flags="--entropy-coef 0.01",
    ),
    Case(
        "moments-after-use",
        "observations are normalized before the statistics have seen them",
        "observations",
        ((OBSERVE, "".join(OBSERVE.splitlines(True)[::-1])),),
        tuning=True,
    ),
    Case(
        "value-broadcast",
        "values [B, 1] minus targets [B] in the value loss",
        "value loss|critic",
        (('losses = (values - batch["value_targets"])', 'losses = (values[:, None] - batch["value_targets"])'),),
    ),
    Case(
        "update-descends",
        "the update descends the objective",
        "does not raise its objective|lowered its objective",
        (("state.policy_adam, policy_loss, batch", "state.policy_adam, lambda *x: -policy_loss(*x), batch"),),
        tuning=True,
    ),
    Case(
        "clip-maximum",
        "the objective takes the larger of the clipped and the unclipped term",
        "clip",
        (("surrogate = torch.minimum(", "surrogate = torch.maximum("),),
        tuning=True,
    ),
    Case(
        "policy-rate",
        "the policy's learning rate is 30 times the value network's",
        "policy_lr|learning rate|too far",
        (("policy_norm = args.policy_lr * ", "policy_norm = 30 * args.value_lr * "),),
        tuning=True,
    ),
    Case(
        "second-moment",
        "Adam's second moment decays by 0.9 in place of 0.999",
        "Adam",
        (
            ("v = 0.999 * v + 0.001 * gradient**2", "v = 0.9 * v + 0.1 * gradient**2"),
            ("v / (1 - torch.exp(t * math.log(0.999)))", "v / (1 - torch.exp(t * math.log(0.9)))"),
        ),
        tuning=True,
    ),
]

# These were written when the checks for those above were final, and committed before the first of them was trained.
# They are common mistakes in implementations of PPO. None was left out for what the report would probably say of it.
# What it said then is in figures/report/then.json. Checks for what was missed were added afterwards.
NEW = dict(seeds=(2,), envs=("Hopper-v5",), new=True)
BUGS += [
    Case(
        "gamma-missing",
        "GAE's sum decays by lambda alone",
        "value targets|advantages",
        ((MASK, MASK.replace("args.gamma * args.gae", "args.gae")),),
        **NEW,
    ),
    Case(
        "discount-swapped",
        "delta discounts the next value by lambda in place of gamma",
        "value targets|advantages",
        (('["rewards"] + args.gamma * next', '["rewards"] + args.gae_lambda * next'),),
        **NEW,
    ),
    Case(
        "ends-shifted",
        "GAE takes the ends of episodes from the row before",
        "value targets|advantages",
        (('steps["ends"].tolist()', 'np.roll(steps["ends"], 1).tolist()'),),
        **NEW,
    ),
    Case(
        "cuts-not-bootstrapped",
        "V counts as 0 where a rollout or a time limit cuts an episode",
        "cut",
        (('next_values[torch.from_numpy(steps["terminations"])]', 'next_values[torch.from_numpy(steps["ends"])]'),),
        **NEW,
    ),
    Case(
        "time-limits-terminal",
        "a time limit is a terminal state, whatever the flag says",
        "time limit|truncat",
        (("terminated or (truncated and not args.bootstrap_truncation)", "terminated or truncated"),),
        **NEW | dict(envs=("HalfCheetah-v5",)),  # where episodes are long enough
    ),
    Case(
        "targets-normalized",
        "advantages are normalized before the value targets are made of them",
        "value targets",
        ((TARGETS, "value_targets=(advantages - advantages.mean()) / advantages.std() + old_values"),),
        **NEW,
    ),
    Case(
        "next-obs-raw",
        "the next observation is not normalized before its value is taken",
        "next_obs is not",
        ((ROW, ROW.replace("next_obs", "worker.raw_obs.astype(np.float32)")),),
        **NEW,
    ),
    Case(
        "clipped-actions-kept",
        "log-probabilities are of the clipped action, and not of the one that was drawn",
        "actions are not the policy's|log-prob",
        ((ROW, ROW.replace("action,", f"action.clip({SPACE}.low, {SPACE}.high),")),),
        flags="--bound-action clip",
        **NEW,
    ),
    Case(
        "log-probs-averaged",
        "log-probabilities are averaged over the action's dimensions, and not summed",
        "clipped surrogate|log-prob",
        ((RATIOS, RATIOS.replace("(pi", "((pi").replace('probs"])', 'probs"]) / batch["actions"].shape[1])')),),
        **NEW,
    ),
    Case(
        "ratio-of-1",
        "old log-probabilities are taken again in each minibatch, so that every ratio is 1",
        "clipped surrogate|ratio",
        ((RATIOS, RATIOS.replace('batch["old_log_probs"]', 'pi.log_prob(batch["actions"]).detach()')),),
        **NEW,
    ),
    Case(
        "std-not-learned",
        "log_std gets no gradient",
        "standard deviations? .*(not|never)|log_std",
        (("self.log_std.exp()", "self.log_std.detach().exp()"),),
        **NEW,
    ),
    Case(
        "one-epoch",
        "a break in the wrong loop ends every fit after its first epoch",
        "epoch",
        (("for _ in range(epochs)]", "for _ in range(1)]"),),
        **NEW,
    ),
    Case(
        "adam-forgets",
        "the policy's optimizer is made again in each iteration",
        "Adam",
        ((COUNT, f"    state.policy_adam[:] = [torch.zeros_like(x) for x in state.policy_adam]\n{COUNT}"),),
        **NEW,
    ),
    Case(
        "annealed-too-fast",
        "learning rates reach 0 after half of the training",
        "learning rate|policy_lr",
        (
            (
                "lr_fraction = 1 - state.global_step / state.planned_steps if",
                "lr_fraction = max(0.0, 1 - 2 * state.global_step / state.planned_steps) if",
            ),
        ),
        **NEW,
    ),
    Case(
        "same-start",
        "every episode is reset with the same seed",
        "same (start|state|seed|episode)",
        (("seed = int(state.rng.integers(2**31))", "seed = args.seed"),),
        **NEW,
    ),
    Case(
        "normalizer-stops",
        "the statistics of observations take in the first 2,048 alone",
        "statistics of observations",
        (("        stats.push(obs)\n", "        if stats.count < 2048:\n            stats.push(obs)\n"),),
        **NEW,
    ),
]
HEALTHY = [
    Case("ppo", "ppo.py"),
    Case(
        "ppo-plain", "ppo.py without value clip, annealing and tanh", flags="--no-value-clip --no-anneal-lr --no-tanh"
    ),
    Case("ppo-lambda", "ppo.py, lambda 0.9, 5 epochs", flags="--gae-lambda 0.9 --policy-epochs 5 --value-epochs 5"),
    Case("ppo-entropy", "ppo.py, entropy bonus, clipped actions", flags="--entropy-coef 0.01 --bound-action clip"),
    Case("ppo-tanh", "ppo.py, squashed actions", flags="--bound-action tanh"),
    Case("ppo_m", "ppo_m.py", script="ppo_m"),
    Case("ppo_noclip", "ppo_noclip.py", script="ppo_noclip"),
    Case("trpo", "trpo.py", script="trpo"),
    Case("trpo_plus", "trpo_plus.py, 2 environments", script="trpo_plus", flags="--num-envs 2 --num-steps 1024"),
    Case("a2c", "a2c.py", script="a2c"),
    Case("vmpo", "vmpo.py", script="vmpo"),
    Case("sb3", "an agent of Stable-Baselines3", script="sb3"),
]

# Training ------------------------------------------------------------------------------------------------------------


@dataclass
class Args:
    out: Path
    """folder of the runs, the reports and the result"""
    seeds: tuple[int, ...] = (1, 2, 3)
    full: str = "bug.*seed2|healthy.*seed3"
    """pattern of the names of runs that also get the full report, such as bug__std-jump__Hopper-v5__seed2; those of the
    bugs that were written later begin with new"""
    only: str = ""
    """pattern of the names of runs"""
    jobs: int = os.cpu_count() or 1
    """runs at a time"""


class Job(NamedTuple):
    case: Case
    env_id: str
    seed: int
    healthy: bool

    @property
    def name(self) -> str:
        kind = "healthy" if self.healthy else "new" if self.case.new else "bug"
        return f"{kind}__{self.case.name}__{self.env_id}__seed{self.seed}"


def make_jobs(args: Args) -> list[Job]:
    cases = [(seed, x) for seed in args.seeds for x in BUGS if seed in x.seeds]
    cases += [(seed, x) for seed in args.seeds for x in HEALTHY]
    jobs = [Job(x, env, seed, x in HEALTHY) for seed, x in cases for env in x.envs]
    return [job for job in jobs if re.search(args.only, job.name)]


def write_script(case: Case, out: Path) -> Path:
    """Returns the case's script: a copy with its edits, or that of algos/ where it has none."""
    source = ROOT / "algos" / f"{case.script}.py"
    if not case.edits:
        return source
    text = source.read_text()
    for old, new in case.edits:
        assert text.count(old) == 1, f"{case.name}: {text.count(old)} places in {source.name} read {old!r}"
        text = text.replace(old, new)
    path = out / "scripts" / case.name / source.name
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return path


def run(command: list[str], log: Path, cwd: Path) -> None:
    """Runs the command, with its output in the log, and stops with one line where it fails."""
    with log.open("a") as file:
        status = subprocess.run(command, stdout=file, stderr=file, cwd=cwd).returncode
    if status:
        print(f"sabotage.py: {' '.join(command)} ended with {status}; see {log}", file=sys.stderr)
        raise SystemExit(1)


def train(job: Job, out: Path) -> None:
    """Trains the job's run to its end; a second call finds it finished."""
    (out / "logs").mkdir(parents=True, exist_ok=True)
    log = out / "logs" / f"{job.name}.txt"
    if job.case.script == "sb3":
        return train_sb3(job, out, log)
    command = [sys.executable, str(write_script(job.case, out)), "--env-id", job.env_id, "--seed", str(job.seed)]
    command += [*LENGTH.split(), *job.case.flags.split(), "--run-name", job.name]
    run(command, log, out)


SB3 = """
import sys
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import CheckpointCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize
import torch
torch.set_num_threads(1)
env_id, seed, folder, options = sys.argv[1], int(sys.argv[2]), sys.argv[3], eval(sys.argv[4])
env = VecNormalize(make_vec_env(env_id, seed=seed, monitor_dir=folder))
save = CheckpointCallback(15 * 2048, folder, save_vecnormalize=True)
model = PPO("MlpPolicy", env, seed=seed, device="cpu", **options).learn(122_880, save)
"""


def train_sb3(job: Job, out: Path, log: Path) -> None:
    folder, agent = out / "runs" / job.name, out / "sb3" / job.name
    if (folder / "config.json").exists():
        return
    shutil.rmtree(agent, ignore_errors=True)
    options = "dict(vf_coef=0.0)" if job.case.flags else "{}"
    run([sys.executable, "-c", SB3, job.env_id, str(job.seed), str(agent), options], log, out)
    files = [str(x) for x in sorted(agent.glob("*_steps.zip"))]
    command = [sys.executable, str(ROOT / "diagnostics" / "sb3.py"), *files, "--env-id", job.env_id]
    run([*command, "--monitor", str(agent / "0.monitor.csv"), "--out", str(folder)], log, out)


# Judging -------------------------------------------------------------------------------------------------------------


def judge(job: Job, out: Path, full: bool) -> list[dict[str, str]]:
    """Returns the report's findings about the job's run: section and status, and where it is an alarm its texts."""
    folder = out / ("full" if full else "quick") / job.name
    command = [sys.executable, str(ROOT / "diagnostics" / "report.py"), str(out / "runs" / job.name)]
    command += ["--out", str(folder), "--jobs", "1", *([] if full else ["--quick"])]
    if job.case.edits:  # a script of the run's own
        command += ["--script", str(write_script(job.case, out))]
    run(command, out / "logs" / f"{job.name}.txt", out)
    page = json.loads((folder / "verdicts.json").read_text())
    found = [x for x in page["findings"] if x["section"] != IGNORED]
    keys = lambda x: ("section", "status", "number", "verdict") if x["status"] in ALARMS else ("section", "status")
    return [{key: x[key] for key in keys(x)} for x in found]


def alarms(findings: list[dict[str, str]]) -> list[str]:
    """Returns the findings that are caution or bad, as texts."""
    return [f"{x['section']}: {x['verdict']} ({x['number']})" for x in findings if x["status"] in ALARMS]


def is_found(result: dict[str, Any], kind: str) -> bool:
    return bool(alarms(result[kind]))


def is_named(result: dict[str, Any], kind: str) -> bool:
    return any(re.search(result["pattern"], text) for text in alarms(result[kind]))


FOUND = dict(found=is_found, named=is_named)
GROUPS = {
    "bugs that thresholds were chosen on": lambda x: not x["healthy"] and x["tuning"] and x["seed"] == 1,
    "the same bugs, other seeds": lambda x: not x["healthy"] and x["tuning"] and x["seed"] > 1,
    "other bugs": lambda x: not (x["healthy"] or x["tuning"] or x["new"]),
    "bugs that were written later": lambda x: x["new"],
    "healthy runs that thresholds were chosen on": lambda x: x["healthy"] and x["seed"] == 1,
    "healthy runs, the other seeds": lambda x: x["healthy"] and x["seed"] > 1,
}


def count(results: list[dict[str, Any]], group: str, kind: str) -> dict[str, tuple[int, int]]:
    """Returns what the quick or the full report did with the runs of a group, each as k of n: bugs found and named, or
    false alarms of all verdicts, and healthy runs with one."""
    chosen = [x for x in results if kind in x and GROUPS[group](x)]
    if "healthy" not in group:
        return {name: (sum(f(x, kind) for x in chosen), len(chosen)) for name, f in FOUND.items()}
    verdicts = [x for of_run in chosen for x in of_run[kind] if x["status"] != "no verdict"]
    accused = sum(is_found(x, kind) for x in chosen)
    return {
        "false alarms, of all verdicts": (sum(len(alarms(x[kind])) for x in chosen), len(verdicts)),
        "runs with a false alarm": (accused, len(chosen)),
    }


def exact(k: int, n: int) -> str:
    """Returns k of n with the exact 95 % interval of the share (Clopper and Pearson), in percent."""
    if not n:
        return "–"
    low = stats.beta.ppf(0.025, k, n - k + 1) if k else 0
    high = stats.beta.ppf(0.975, k + 1, n - k) if k < n else 1
    return f"{k} of {n} [{100 * low:.0f} %, {100 * high:.0f} %]"


def rates(results: list[dict[str, Any]]) -> list[list[str]]:
    """Returns the rows of a table with the rates of each group, its header first."""
    rows = [["", "`--quick`", "in full"]]
    for group in GROUPS:
        counts = {kind: count(results, group, kind) for kind in ("quick", "full")}
        for name, quick in counts["quick"].items():
            rows.append([f"{group}: {name}", exact(*quick), exact(*counts["full"][name])])
    return rows


def each_bug(results: list[dict[str, Any]]) -> list[list[str]]:
    """Returns the rows of a table with what was found of each bug, in the runs on which no threshold was chosen."""
    rows = [["bug", "what it does", "`--quick`: found, named", "in full: found, named"]]
    for bug in dict.fromkeys(x["name"] for x in results if not (x["healthy"] or x["new"])):
        of_bug, cells = [x for x in results if x["name"] == bug and not x["healthy"]], []
        for kind in ("quick", "full"):
            judged = [x for x in of_bug if kind in x and not GROUPS["bugs that thresholds were chosen on"](x)]
            found, named = (sum(f(x, kind) for x in judged) for f in FOUND.values())
            cells.append(f"{found}, {named} of {len(judged)}" if judged else "–")
        rows.append([bug, of_bug[0]["what"], *cells])
    return rows


# Main ----------------------------------------------------------------------------------------------------------------


def in_parallel(task: Callable, jobs: list, threads: int, text: str) -> list:
    """Returns the task's results in the order of the jobs, with a bar and the time left."""
    with ThreadPoolExecutor(threads) as pool:
        return list(tqdm(pool.map(task, jobs), text, len(jobs), mininterval=1 if sys.stderr.isatty() else 30))


def main() -> None:
    args = tyro.cli(Args, description=__doc__)
    out, jobs = args.out.resolve(), make_jobs(args)
    in_parallel(partial(train, out=out), jobs, args.jobs, "training")
    results = [
        dict(name=x.case.name, what=x.case.what, env_id=x.env_id, seed=x.seed, healthy=x.healthy, tuning=x.case.tuning)
        | dict(new=x.case.new, pattern=x.case.pattern)
        for x in jobs
    ]
    for kind, chosen in (("quick", jobs), ("full", [x for x in jobs if re.search(args.full, x.name)])):
        found = in_parallel(partial(judge, out=out, full=kind == "full"), chosen, args.jobs, kind)
        for job, findings in zip(chosen, found):
            results[jobs.index(job)][kind] = findings
    lines = ",\n".join(map(json.dumps, results))
    (out / "sabotage.json").write_text(f"[\n{lines}\n]\n")
    for rows in (rates(results), each_bug(results)):
        print("\n".join("  ".join(row) for row in rows), end="\n\n")


if __name__ == "__main__":
    main()
