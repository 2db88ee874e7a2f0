"""The checks of a script: each planted bug is named by its check, on a script that has not trained, and no healthy
script is accused. figures/report/plant.py trains the same bugs and counts."""

import sys

import lab
import pytest
from conftest import ALGOS, ROOT, load

sys.path.append(str(ROOT / "figures" / "report"))
import plant

SETTINGS = dict(env_id="Hopper-v5", num_steps=256, num_minibatches=4, total_timesteps=10_240, compile=False)
SETTINGS |= dict(checkpoint_every=3, entropy_coef=0.01, bound_action="clip")


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """Returns a function that judges a script at the first checkpoint of a run that has not trained."""
    recorded, checks = load("recorded"), load("checks")

    def judge(algo, script, names=None, **settings):
        module, folder = load(algo), tmp_path_factory.mktemp("runs")
        known = {x for x in module.Args.__dataclass_fields__}
        args = module.Args(**{x: y for x, y in (SETTINGS | settings).items() if x in known})
        (folder / "checkpoints").mkdir()
        module.write_config(args, folder)
        module.save_checkpoint(args, folder, module.State(args))
        subject = recorded.Script(lab.Checkpoint(script, folder, 0), 0)
        chosen = [x for x in load("script_checks").CHECKS if names is None or x.find.__name__ in names]
        return {x["check"]: x["status"] for x in checks.judge(chosen, subject)}

    return judge


BUGS = plant.read_bugs()


@pytest.mark.parametrize("bug", BUGS, ids=lambda x: x.name)
def test_each_bug_is_named(bug, judged, tmp_path):
    script = plant.plant(bug, tmp_path)  # it stops where an edit fits no or two places
    if not bug.trained:
        found = judged(bug.script, script, bug.checks)
        assert {"bad", "differs"} & set(found.values()), found


@pytest.mark.parametrize("switched", (False, True))
@pytest.mark.parametrize("algo", ALGOS)
def test_no_healthy_script_is_accused(algo, switched, judged):
    """It is judged with its defaults, and with all of its on/off flags switched."""
    flags = {name: not x for name, x in vars(load(algo).Args()).items() if isinstance(x, bool) and switched}
    found = judged(algo, ROOT / "algos" / f"{algo}.py", **flags | dict(compile=False))
    assert set(found.values()) == {"good"} and len(found) >= 15 - switched
