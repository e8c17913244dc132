//! Many commands at once.

use std::sync::Arc;
use std::time::Duration;

use farcell::bytes::Bytes;
use farcell::ssh::SshConnector;
use farcell::{Command, Connector as _, Ended, Instant};
use libtest_mimic::Trial;

use crate::site::site;
use crate::trial;

pub(crate) fn trials(driver: &'static str) -> Vec<Trial> {
    vec![trial(driver, "many_commands_at_once_lose_nothing", many_commands)]
}

async fn many_commands(driver: &'static str) {
    let Some(site) = site(driver) else { return };
    let connector = SshConnector::new(site.options.clone());
    let transport = connector.connect(&site.target()).await.unwrap().transport;
    let input: Bytes = (0..3_000_000u32).map(|i| (i % 251) as u8).collect::<Vec<_>>().into();
    for round in 0..5 {
        let calls = (0..12usize).map(|n| {
            let (transport, input) = (Arc::clone(&transport), input.slice(..n * 250_000 + 1));
            async move {
                let deadline = Instant::now() + Duration::from_secs(60);
                let output = transport.exec(&Command::sh("exec cat"), input.clone(), deadline).await.unwrap();
                assert_eq!(output.ended, Ended::Exit(0), "round {round}, call {n}");
                assert!(
                    output.stdout == input,
                    "round {round}, call {n}: {} of {} bytes",
                    output.stdout.len(),
                    input.len()
                );
            }
        });
        futures_util::future::join_all(calls).await;
    }
}
