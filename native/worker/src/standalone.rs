//! Training by the command line: the ranks find each other over TCP.

use std::env;
use std::fs;
use std::io;
use std::net::{IpAddr, ToSocketAddrs, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use flambeau_collective::TcpRendezvous;
use flambeau_train::{TrainingJob, TrainingResult};

use crate::arguments::TrainArguments;
use crate::failure::Failure;
use crate::lines::Lines;
use crate::training::{self, Settings};

const SECRET: &str = "FLAMBEAU_SECRET";

/// Trains one rank; returns the exit status. A failure is told on standard error too.
pub(crate) fn main(arguments: &TrainArguments) -> i32 {
    let Some(lines) = Lines::take_stdout() else {
        return 1;
    };
    let lines = Arc::new(lines);
    let outcome = training::conclude(&lines, arguments.rank, || train(arguments, &lines));
    if let Err(failure) = &outcome {
        let Failure { rank, host, .. } = failure;
        eprintln!(
            "flambeau-worker: rank {rank} on {host}: {}",
            failure.message
        );
    }
    i32::from(outcome.is_err())
}

fn train(arguments: &TrainArguments, lines: &Arc<Lines>) -> Result<TrainingResult, Failure> {
    let rank = arguments.rank;
    let refuse = |reason: String| Failure::of_environment(rank, reason);
    let text = fs::read_to_string(&arguments.job).map_err(|error| {
        refuse(format!(
            "the job {} cannot be read: {error}",
            arguments.job.display()
        ))
    })?;
    let job = TrainingJob::from_json(&text).map_err(|error| Failure::early(rank, error))?;
    let secret = secret(arguments).map_err(refuse)?;
    let bind_address = match arguments.bind_address {
        Some(address) => address,
        None => address_towards(&arguments.rendezvous).map_err(|error| {
            refuse(format!(
                "no address of this host leads to the rendezvous {}: {error}; give --bind-address",
                arguments.rendezvous
            ))
        })?,
    };
    let mut rendezvous = TcpRendezvous::new(
        &arguments.rendezvous,
        rank,
        arguments.world_size,
        &secret,
        Duration::from_secs_f64(job.params.collective_timeout),
    )
    .map_err(|error| Failure::early(rank, error))?
    .for_attempt(&job.attempt.id);
    let settings = Settings {
        rank,
        bind_address,
        secret,
        transport: arguments.transport.clone(),
        gpus: arguments.gpus.clone(),
        report_steps: arguments.report_steps,
        cancel: None,
    };
    training::train(job, settings, &mut rendezvous, lines)
}

/// The secret of the file, else of the environment; a rank that is alone needs none.
fn secret(arguments: &TrainArguments) -> Result<Vec<u8>, String> {
    if let Some(file) = &arguments.secret_file {
        return match fs::read(file) {
            Ok(secret) if secret.is_empty() => Err(format!("{} is empty", file.display())),
            Ok(secret) => Ok(secret),
            Err(error) => Err(format!("{} cannot be read: {error}", file.display())),
        };
    }
    match env::var(SECRET) {
        Ok(secret) if !secret.is_empty() => Ok(secret.into_bytes()),
        _ if arguments.world_size == 1 => Ok(vec![]),
        _ => Err(format!(
            "a secret is missing: give all ranks the same one, with --secret-file or in {SECRET}"
        )),
    }
}

/// This host's address on the way to another. Sends nothing: connecting a datagram socket only chooses the way.
fn address_towards(rendezvous: &str) -> io::Result<IpAddr> {
    let target = rendezvous
        .to_socket_addrs()?
        .next()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the name has no IP address"))?;
    let any = match target {
        std::net::SocketAddr::V4(_) => "0.0.0.0:0",
        std::net::SocketAddr::V6(_) => "[::]:0",
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(target)?;
    Ok(socket.local_addr()?.ip())
}
