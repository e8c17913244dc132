//! The container that an engine is asked for: closed, and with an end of its own.

use std::collections::HashMap;

use bollard::models::{ContainerCreateBody, HealthConfig, HostConfig, HostConfigLogConfig, Mount, MountType};
use farcell_core::{Command, KernelSpec, Target};

use super::order::Order;
use crate::engine::digest;

/// By these labels a sandbox is found, and told from what others made.
pub(super) const IS_SANDBOX: &str = "farcell.sandbox";
pub(super) const KEY: &str = "farcell.key";
pub(super) const TARGET: &str = "farcell.target";

/// The sandbox's own program. It ends, and the container with it, when nothing but itself has been there for three turns, or nothing has come
/// within two minutes of its start: a farcell that was killed leaves nothing. Kernels leave when they were idle for too long, couriers when their
/// host is gone; zygotes, what was sent in from outside (the leader of its session has no parent here) and what it started itself (the leader of
/// its session is the container's first process) are there for kernels only and not
/// waited for. What was left to the shell as a child it reaps while it waits for its
/// `sleep`. Nothing is started to look around but that: `read` is a word of the shell's own, and drops the zeros between arguments.
///
/// Beside that it answers on its own stdin, where a host is with fewer steps than a command of its own takes: a line that begins with the mark (its
/// first argument) starts a courier (its second one, the runner's command), which stays for the hosts that come after. The courier gets an end
/// of the pipe that it can change without changing this one.
const KEEPER: &str = r#"answer() {
    while IFS=' ' read -r mark nonce rest; do
        case $mark in *"$1") ;; *) continue ;; esac
        printf '\376%s %s\n' "$1" "$nonce"
        /bin/sh -c "$2" </proc/self/fd/0
        printf '\376%s -\n' "$1"
    done
}
exec 3<&0 </dev/null
answer "$@" <&3 3<&- &
exec 3<&-
n=0 most=24
while [ $n -lt $most ]; do
    sleep 5
    n=$((n + 1))
    for p in /proc/[0-9]*; do
        case ${p#/proc/} in 1 | $$) continue ;; esac
        words= stat= leader=
        { read -r words < "$p/cmdline"; read -r stat < "$p/stat"; } 2>/dev/null
        case $words in '' | *--zygote*) continue ;; esac
        set -- ${stat##*) }
        { read -r leader < "/proc/$4/stat"; } 2>/dev/null
        set -- ${leader##*) }
        [ "$2" = 0 ] && continue
        n=0 most=3
        break
    done
done
"#;

/// What the sandbox of a key knows its hosts' lines by. Nobody learns it who has not made the sandbox, or is in it.
pub(super) fn mark(key: &str) -> String {
    let mut mark = digest(&format!("{key} stands"));
    mark.truncate(32);
    mark
}

/// The room in memory that kernels live in, with what their cells print, and that processes share. What is used of it counts as memory.
const SHARED: i64 = 512 << 20;

/// Whose sandbox it is.
#[derive(Debug, Clone)]
pub(super) struct Whose {
    owner: String,
    session: String,
}

impl Whose {
    pub(super) fn of(spec: &KernelSpec) -> Self {
        Whose { owner: digest(&spec.owner), session: spec.session.clone() }
    }

    /// Of nobody's session.
    pub(super) fn nobody(session: &str) -> Self {
        Whose { owner: digest(""), session: session.to_owned() }
    }
}

/// The label that all sandboxes of a target have.
pub(super) fn target_label(target: &Target) -> String {
    digest(target.as_str())
}

/// The container for an order.
pub(super) fn body(
    order: &Order,
    target: &Target,
    key: &str,
    whose: &Whose,
    init: bool,
) -> ContainerCreateBody {
    let [.., runner] = Command::runner().argv();
    let labels = [
        (IS_SANDBOX, "1".to_owned()),
        (KEY, key.to_owned()),
        (TARGET, target_label(target)),
        ("farcell.owner", whose.owner.clone()),
        ("farcell.session", whose.session.clone()),
        ("farcell.image", order.image.to_string()),
    ];
    let mounts = order.mounts.iter().map(|mount| Mount {
        typ: Some(MountType::BIND),
        source: Some(mount.host.clone()),
        target: Some(mount.container.clone()),
        read_only: Some(mount.read_only),
        ..Mount::default()
    });
    // From /tmp one may execute: what pip builds and ctypes loads lies there, and the rest of the container is open to it anyway.
    let tmp = ("/tmp".to_owned(), "rw,exec,nosuid,nodev,mode=1777".to_owned());
    let host_config = HostConfig {
        auto_remove: Some(true),
        init: Some(init),
        network_mode: Some(order.network.clone()),
        cap_drop: Some(vec!["ALL".to_owned()]),
        security_opt: Some(vec!["no-new-privileges".to_owned()]),
        pids_limit: Some(order.pids),
        memory: order.memory,
        // No swap on top: what is too much is told at once.
        memory_swap: order.memory,
        nano_cpus: order.nano_cpus,
        readonly_rootfs: Some(order.read_only),
        tmpfs: Some(HashMap::from([tmp])),
        mounts: Some(mounts.collect()),
        ipc_mode: Some("private".to_owned()),
        shm_size: Some(SHARED),
        publish_all_ports: Some(false),
        // What goes to and fro there is nothing to keep.
        log_config: (!order.podman)
            .then(|| HostConfigLogConfig { typ: Some("none".to_owned()), config: None }),
        ..HostConfig::default()
    };
    ContainerCreateBody {
        image: Some(order.image.to_string()),
        entrypoint: Some(vec!["/bin/sh".to_owned()]),
        cmd: Some(["-c", KEEPER, "farcell", &mark(key), runner].map(str::to_owned).to_vec()),
        // For as long as it runs, whoever comes and goes.
        open_stdin: Some(!order.podman),
        labels: Some(labels.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()),
        user: order.user.clone(),
        working_dir: order.workdir.clone(),
        // An image's own check of its service would be run for nothing, again and again.
        healthcheck: Some(HealthConfig { test: Some(vec!["NONE".to_owned()]), ..HealthConfig::default() }),
        host_config: Some(host_config),
        ..ContainerCreateBody::default()
    }
}
