"""Makes a run of agents that Stable-Baselines3 (SB3) trained with PPO, so that every diagnostic can look at them.

    python diagnostics/sb3 ppo_hopper.zip --env-id Hopper-v5 --vecnormalize vecnormalize.pkl --out runs/my_agent
    python diagnostics/sb3 logs/rl_model_*_steps.zip --env-id Hopper-v5 --monitor monitor.csv --out runs/my_agent
    python diagnostics/report runs/my_agent

The files of one call of learn() become checkpoints of one run: those that CheckpointCallback writes, with the
statistics that lie beside them, or those of a folder of RL Baselines3 Zoo. SB3 saves in the middle of a rollout, so a
file becomes the checkpoint of the iteration whose rollout it was in; of two in the same iteration the later one counts.
Iterations are counted from where SB3 counts its steps from. With the monitor.csv of each environment, the run also has
a progress.csv, from which the report can judge learning.

SB3 need not be installed, and nothing in the files is executed: sb3_files.py reads them. What belongs to the agent but
cannot be imported, such as another optimizer than Adam, is refused in one line. The run's script is sb3_ppo.py. An
agent whose training has ended is given one more iteration, unless its learning rate has come down to 0.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import gymnasium as gym
import numpy as np
import torch
import tyro
from lab import note, refuse
from sb3_files import SCHEDULES, Agent, Episode, read_agent, read_monitor, read_vecnormalize
from sb3_ppo import Args, BadInput, State, in_order, make_env, value_at

# Arguments -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Files:
    agents: Annotated[tuple[Path, ...], tyro.conf.Positional]  # zip files of one training, or a folder that holds them
    out: Path  # folder of the run to make
    env_id: str = ""  # with the wrappers of the training (my_module:MyEnv-v0); default: what --monitor names
    # statistics of VecNormalize, for files that have none beside them (in rl_model_vecnormalize_N_steps.pkl, or in
    # vecnormalize.pkl in a folder with the name of the file or of the environment)
    vecnormalize: Path | None = None
    monitor: tuple[Path, ...] = ()  # monitor.csv of each of the training's environments, for the run's progress.csv
    learning_rate: float | None = None  # constant; default: what the files say, or else the rate of the last update
    clip_range: float | None = None  # constant, where the files do not say it
    clip_range_vf: float | None = None  # constant, where the files do not say it


# Import --------------------------------------------------------------------------------------------------------------

OUR_NAMES = dict(n_envs="num_envs", n_steps="num_steps", n_epochs="epochs", ent_coef="entropy_coef")
OF_VECNORMALIZE = dict(obs_norm="norm_obs", obs_clip="norm_obs", obs_clip_range="clip_obs", norm_gamma="gamma")
OF_VECNORMALIZE |= dict(reward_scale="norm_reward", reward_clip="norm_reward", reward_clip_range="clip_reward")
OF_VECNORMALIZE |= dict(norm_eps="epsilon", norm_training="training")


def settings_of(agent: Agent, env_id: str) -> Args:
    data, rate = agent.settings, agent.settings["learning_rate"]
    # Every agent has a next iteration, even where its training has ended, unless its learning rate would then be 0.
    total = max(data["_total_timesteps"], agent.extra + (agent.iteration + 1) * agent.batch)
    if rate == 0:
        total = agent.extra + agent.iteration * agent.batch
    elif value_at(rate, np.inf) == 0:
        end = rate[2] * data["_total_timesteps"]
        total = max(0, int(np.ceil((end - agent.extra) / agent.batch)) - 1) * agent.batch
    return Args(
        **{OUR_NAMES.get(x, x): y for x, y in data.items() if OUR_NAMES.get(x, x) in Args.__dataclass_fields__},
        env_id=env_id,
        total_timesteps=total,
        schedule_steps=data["_total_timesteps"],
        planned_steps=agent.extra + -(-(data["_total_timesteps"] - agent.extra) // agent.batch) * agent.batch,
        rollout_pairs=agent.batch,
        policy_hidden=agent.hidden["policy"],
        value_hidden=agent.hidden["value"],
        activation=agent.activation,
        betas=agent.group["betas"],
        adam_eps=agent.group["eps"],
        weight_decay=agent.group["weight_decay"],
        **{ours: agent.statistics[theirs] for ours, theirs in OF_VECNORMALIZE.items() if agent.statistics},
    )


def make_checkpoint(agent: Agent, args: Args) -> dict[str, Any]:
    """Returns the fields of the agent's state."""
    state = State(replace(args, num_envs=1))  # of which no environment is kept
    with torch.no_grad():
        for ours, theirs in zip(in_order(state), agent.networks.values()):
            ours.copy_(theirs)
    for stats, name in ((state.obs_stats, "obs_rms"), (state.reward_stats, "ret_rms")):
        if name in agent.statistics and agent.statistics[name]["mean"].shape != stats.mean.shape:
            refuse(f"{agent.path}: the statistics of VecNormalize are not those of {args.env_id}")
        vars(stats).update(agent.statistics.get(name, {}))
    checkpoint = {name: getattr(state, name).state_dict() for name in ("policy", "value", "obs_stats", "reward_stats")}
    counters = dict(iteration=agent.iteration, global_step=agent.extra + agent.iteration * agent.batch)
    return checkpoint | counters | dict(adam=agent.moments, rng=state.rng.bit_generator.state)


def find_agents(files: Files) -> list[Agent]:
    """Returns the agents, one for each iteration, in order."""
    paths = [x for path in files.agents for x in (sorted(path.glob("*.zip")) if path.is_dir() else [path])]
    given = {name: getattr(files, name) for name in SCHEDULES}
    # Adam's count of steps tells which of two files at the last step of a rollout was saved before the update.
    order = lambda x: (x.iteration, x.settings["num_timesteps"], x.group["step"])
    agents = sorted((read_agent(path, given) for path in paths), key=order)
    for name in ("n_steps", "n_envs", "_total_timesteps", "seed", "start_time"):
        if len({x.settings[name] for x in agents}) > 1:
            refuse(f"these files are not of one call of learn(), since they differ in {name.lstrip('_')}")
    found = {agent.iteration: agent for agent in agents}  # of two in one iteration, the later stays
    return list(found.values()) or refuse("there is no zip file")


def find_statistics(files: Files, agent: Agent, env_id: str) -> Path | None:
    """Returns the file of VecNormalize's statistics, or None where the agent's file says that it was without."""
    if not agent.normalized:
        if files.vecnormalize:
            refuse(f"{agent.path} was trained without VecNormalize, but --vecnormalize names statistics")
        return None
    beside = agent.path.with_name(re.sub(r"_(\d+_steps)\.zip$", r"_vecnormalize_\1.pkl", agent.path.name))
    if beside != agent.path and beside.is_file():
        return beside
    # RL Baselines3 Zoo saves one file for all agents, in a folder with the environment's name beside them.
    names = agent.path.stem, env_id.rpartition(":")[2].replace("/", "-")
    folders = [agent.path.with_name(name) / "vecnormalize.pkl" for name in names]
    text = "was trained behind VecNormalize; name its statistics with --vecnormalize"
    return files.vecnormalize or next(filter(Path.is_file, folders), None) or refuse(f"{agent.path} {text}")


def note_other_moments(agents: list[Agent]) -> None:
    """Says so where statistics are of another moment than the agent, as an earlier one's are in a folder of the Zoo.
    They count the steps that they have taken in, which are the agent's unless VecNormalize has seen others, too."""
    taken = {x.path: round(x.statistics["ret_rms"]["count"]) for x in agents if x.statistics.get("training")}
    apart = [x for x in agents if taken.get(x.path, x.settings["num_timesteps"]) != x.settings["num_timesteps"]]
    if apart:
        path, made = apart[0].path, apart[0].settings["num_timesteps"]
        first = f"{path} has made {made:,} steps, and its statistics have taken in {taken[path]:,}"
        why = "unless VecNormalize was used before or beside the training, these are of another moment, and it acts"
        note(f"{first}; {why} otherwise than it did (so for {len(apart)} of {len(agents)} agents)")


def check_environment(agent: Agent, env: gym.Env, env_id: str) -> None:
    """Stops where an agent was trained in another environment, as far as its file tells. Actions are clipped to their
    bounds. Those of observations do nothing, and versions of an environment differ in them, so these get a note."""
    advice = "name the --env-id of its training, with its wrappers"
    for name, bounds in agent.spaces.items():
        space, what = getattr(env, name), name.replace("_space", "s")
        if not isinstance(space, gym.spaces.Box) or space.shape != bounds.shape[1:]:
            refuse(f"{agent.path}: its {what} have shape {bounds.shape[1:]}, those of {env_id} {space.shape}; {advice}")
        saved = name == "action_space" or agent.statistics.get("norm_obs")  # other observations are of this type anyway
        if saved and space.dtype not in (np.float32, np.float64):
            refuse(f"{agent.path}: SB3's buffer cuts its {what} to {space.dtype} before it learns from them")
        if not np.all(np.isclose(bounds, [space.low, space.high], rtol=1e-3) | np.isnan(bounds)):
            say = refuse if name == "action_space" else note
            say(f"{agent.path}: its {what} had other bounds than those of {env_id}; {advice}")


def sort_episodes(agent: Agent, monitors: list[list[Episode]]) -> dict[int, list[tuple[float, int]]]:
    """Returns (return, length) of the episodes of the agent's training, by the iteration in which they ended.

    A monitor goes on through several calls of learn(), and through evaluations in the same environment. But the file of
    an agent says when its learn() began, and which episodes were the last. Stops where that does not tell."""
    data, begun, start = agent.settings, agent.settings["_num_timesteps_at_start"], agent.settings["start_time"] / 1e9
    if len(monitors) != data["n_envs"]:
        refuse(f"--monitor names {len(monitors)} files, but there were {data['n_envs']} environments with one each")
    if start < 1e6:  # before 1.6.1 it was in seconds
        refuse(f"{agent.path}: SB3 {agent.version} did not save when learn() began, so --monitor cannot be used")
    last = {x.mark: x.end for episodes in monitors for x in episodes if x.mark in agent.last_episodes}
    if agent.last_episodes and agent.last_episodes[-1] not in last:
        refuse(f"--monitor: the last episode that {agent.path} has seen is in none of these files")
    found = {}
    for episodes in monitors:
        seen = [x for x in episodes if x.end <= max(last.values(), default=0)]
        if not seen:
            continue
        own = [x for x in seen if start <= x.end]
        # The first may have begun in the learn() before. A file without earlier episodes was begun with this learn().
        first, before = own[0].length if own else np.inf, sum(x.length for x in seen[: len(seen) - len(own)])
        step = before - begun / data["n_envs"] if before and begun else 0
        told = -first < step <= 0 if before or not begun else first <= begun / data["n_envs"]
        if not told:
            refuse(f"--monitor has {before:,} steps until the agent's step {begun:,}, so some are not its own")
        if before and begun and not agent.extra:  # it has seen the earlier iterations too
            own, step = seen, -begun / data["n_envs"]
        for x in own:
            step += x.length
            found.setdefault(int(begun // agent.batch + (step - 1) // data["n_steps"]), []).append((x.total, x.length))
    return found


def write_progress(path: Path, agent: Agent, ended: dict[int, list[tuple[float, int]]] | None) -> None:
    """Writes a row for each iteration. The progress.csv of SB3 would not do: its returns are means of 100 episodes."""
    columns = "iteration global_step sps episodes episodic_return episodic_length entropy mean_kl explained_variance"
    with open(path, "w", newline="") as file:
        table = csv.DictWriter(file, columns.split())
        table.writeheader()
        for i in range(agent.iteration):
            row = dict(iteration=i, global_step=agent.extra + (i + 1) * agent.batch)
            if ended and i >= min(ended):
                row["episodes"] = len(ended.get(i, []))
            if ended and i in ended:
                row["episodic_return"], row["episodic_length"] = np.mean(ended[i], axis=0).tolist()
            table.writerow(row)


def main(argv: list[str] | None = None) -> None:
    files = tyro.cli(Files, args=argv, description=__doc__)
    monitors = [read_monitor(path) for path in files.monitor]
    monitored = next((name for name, _ in monitors if name), "")
    env_id = files.env_id or monitored or refuse("the files do not say the environment: name it with --env-id")
    if monitored and monitored != env_id.rpartition(":")[2]:
        note(f"--monitor says that the environment was {monitored}, but --env-id says {env_id}")
    agents = find_agents(files)
    try:
        env = make_env(Args(env_id=env_id))
    except BadInput as error:
        refuse(str(error))
    script = hashlib.sha256(Path(__file__).with_name("sb3_ppo.py").read_bytes()).hexdigest()
    checkpoints, made = {}, []
    for agent in agents:
        path = find_statistics(files, agent, env_id)
        agent.statistics = read_vecnormalize(path) if path else {}
        check_environment(agent, env, env_id)
        by = f"normalized by {path}" if path else "not normalized"
        made.append(f"iteration {agent.iteration}: {agent.path}, {by}")
        args = settings_of(agent, env_id)
        config = dict(algo="sb3", args=asdict(args), script=script, versions=dict(stable_baselines3=agent.version))
        checkpoints[agent.iteration] = config | make_checkpoint(agent, args)
    note_other_moments(agents)
    ended = sort_episodes(agents[-1], [episodes for _, episodes in monitors]) if monitors else None
    if files.out.exists():
        refuse(f"--out {files.out} exists already; name another folder")
    try:
        (files.out / "checkpoints").mkdir(parents=True)
    except OSError as error:
        refuse(f"--out {files.out}: {error.strerror}")
    for iteration, checkpoint in checkpoints.items():
        torch.save(checkpoint, files.out / "checkpoints" / f"iter_{iteration:06d}.pt")
    write_progress(files.out / "progress.csv", agents[-1], ended)
    (files.out / "config.json").write_text(json.dumps(config, indent=1))  # the newest agent's; last: now it is a run
    trained = f"PPO of SB3 {agent.version} on {env_id}, with iterations of {agent.batch:,} steps"
    print(f"{files.out}: {trained}", *made, sep="\n")
    equivalent = "an iteration that a diagnostic repeats is statistically equivalent, and not identical"
    print(f"SB3 saves neither random numbers nor environments, so {equivalent}.")
