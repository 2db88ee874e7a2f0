#!/usr/bin/env bash
# A Slurm cluster of this one machine, on its loopback address: the real scheduler, for test_benchmark.py and for trying
# benchmark.sh --launcher slurm. Needs root and apt-get install slurm-wlm munge; leaves /etc as it is.
#
#   eval "$(tests/slurm.sh start)"    starts it (or starts it again) and tells Slurm's commands, by SLURM_CONF, where it is
#   tests/slurm.sh stop               stops it and removes what it wrote
set -euo pipefail
home=${SLURM_TEST_HOME:-/tmp/slurm-of-one}

die() {
    echo "slurm.sh: $1" >&2
    exit 1
}

stop() {
    local daemon pid
    for daemon in slurmd slurmctld munged; do
        pid=$(cat "$home/$daemon.pid" 2>/dev/null) || continue
        [[ $(ps -o comm= -p "$pid") != "$daemon" ]] || kill "$pid"
        for _ in {1..50}; do
            kill -0 "$pid" 2>/dev/null || break
            sleep 0.1
        done
    done
    rm -rf "$home"
}

start() {
    local host cpus memory
    export PATH=$PATH:/usr/sbin # where the daemons are, and an ordinary user's PATH does not lead
    ((UID == 0)) || die "must be root"
    for command in munged slurmctld slurmd sinfo; do
        command -v "$command" >/dev/null || die "no $command here: apt-get install slurm-wlm munge"
    done
    host=$(hostname -s) cpus=$(nproc --all) memory=$(free -m | awk '/^Mem:/ { print int($2 / 2) }')
    mkdir -p "$home/state" "$home/spool"
    chmod 755 "$home"
    # munge vouches for users between the daemons; a key and a socket of its own keep it apart from the machine's.
    (umask 077 && head -c 512 /dev/urandom >"$home/munge.key")
    munged --key-file="$home/munge.key" --socket="$home/munge.socket" --pid-file="$home/munged.pid" \
        --log-file="$home/munged.log" --seed-file="$home/munge.seed" --force 2>/dev/null
    cat >"$home/slurm.conf" <<CONF
ClusterName=one
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
# cred_expire: also the seconds that a requeued job waits.
AuthType=auth/munge
AuthInfo=socket=$home/munge.socket,cred_expire=5
CredType=cred/munge
SlurmctldPort=16817
SlurmdPort=16818
StateSaveLocation=$home/state
SlurmdSpoolDir=$home/spool
SlurmctldPidFile=$home/slurmctld.pid
SlurmdPidFile=$home/slurmd.pid
SlurmctldLogFile=$home/slurmctld.log
SlurmdLogFile=$home/slurmd.log
# Containers have no cgroups to give away: processes are tracked by their parents.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobRequeue=0
KillWait=5
SchedulerParameters=sched_interval=2,bf_interval=2
NodeName=$host NodeAddr=127.0.0.1 CPUs=$cpus RealMemory=$memory
PartitionName=main Nodes=$host Default=YES MaxTime=INFINITE State=UP
CONF
    printf 'CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n' >"$home/cgroup.conf" # slurmd reads it all the same
    export SLURM_CONF=$home/slurm.conf
    slurmctld
    slurmd
    for _ in {1..60}; do
        if [[ $(sinfo --noheader --format=%t 2>/dev/null) == idle ]]; then
            echo "export SLURM_CONF=$SLURM_CONF"
            return
        fi
        sleep 0.5
    done
    tail -n 5 "$home"/*.log >&2
    die "the node did not come up"
}

case ${1-} in
start) stop && start ;;
stop) stop ;;
*) die "say start or stop" ;;
esac
