//! The boxes themselves, brought up by either Compose, and all that leads into them.

use farcell_testbed::{Boxes, Compose, Engine, available};
use libtest_mimic::Trial;

use crate::harness::Farcell;
use crate::trial;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("compose_1_brings_the_boxes_up_and_takes_them_down", || up_and_down(Compose::One, "1.29")),
        trial("compose_2_brings_the_boxes_up_and_takes_them_down", || up_and_down(Compose::Two, "2.")),
    ]
}

fn up_and_down(compose: Compose, version: &str) {
    let Some(boxes) = available(Boxes::up(compose, &["python", "ssh"])) else { return };
    let told = compose.version().unwrap();
    assert!(told.starts_with(version), "{told}");
    for service in ["python", "ssh"] {
        let limits = "{{.HostConfig.Memory}} {{.HostConfig.MemorySwap}} {{.HostConfig.PidsLimit}} {{.HostConfig.CapDrop}}";
        assert_eq!(boxes.container(service).inspect(limits).unwrap(), "536870912 536870912 512 [ALL]");
    }
    let project = &boxes.project;
    let targets = [boxes.container("python").target(""), format!("compose://{project}/python"), boxes.ssh()];
    for target in &targets {
        let farcell = Farcell::with_target(target);
        farcell.ok(&["run", "x = 41"]);
        assert_eq!(farcell.ok(&["run", "x + 1"]), "42");
        assert_eq!(farcell.ok(&["run", "import os; os.getuid()"]), "1000");
    }
    let network = format!("{project}_inside");
    let out = Engine::DOCKER.command().args(["network", "inspect", "-f", "{{.Internal}}", &network]).output();
    assert_eq!(out.unwrap().stdout, b"true\n");
    // The boxes see each other.
    assert_eq!(
        Farcell::with_target(&targets[2])
            .ok(&["run", "import socket; len(socket.gethostbyname('python').split('.'))"]),
        "4"
    );
    assert_eq!(boxes.down(), "", "something is left");
}
