//! Which device each rank trains on, and its connection to those of the others.

use std::collections::HashMap;
use std::env;
use std::sync::Arc;

use flambeau_collective::{
    CollectiveError, CudaRuntime, DeviceRuntime, Gpu, NcclGroup, NcclLibrary, NcclOptions,
    NcclVersion, ProcessGroup, Stream,
};
use serde::{Deserialize, Serialize};

use crate::error::{Cause, JobError};
use crate::job::compression::Compression;
use crate::job::params::{DeviceChoice, TrainingParams};
use crate::model::{DeviceModel, Model};

/// Set to 1, NCCL lets ranks share a GPU, and so does [`choose`].
const SHARING: &str = "NCCL_MULTI_RANK_GPU_ENABLE";

/// The first release that does so, as an experiment. Those before it know no such variable, and refuse a GPU that two ranks have.
const SHARED_SINCE: NcclVersion = NcclVersion {
    major: 2,
    minor: 30,
    patch: 0,
};

/// The GPUs that a rank may train on.
#[derive(Clone)]
pub struct Gpus {
    /// What the cluster's scheduler has assigned to the rank, if it has: the address of a GPU, which is its number among
    /// those that the process sees, or its UUID.
    pub assigned: Option<String>,
    /// Those that the process sees.
    pub devices: Arc<dyn Devices>,
}

impl Default for Gpus {
    /// Those of the machine, none of which is assigned.
    fn default() -> Self {
        Gpus {
            assigned: None,
            devices: Arc::new(CudaDevices),
        }
    }
}

/// The GPUs that a process sees.
pub trait Devices: Send + Sync {
    /// All of them, by number.
    ///
    /// # Errors
    /// Why there are none.
    fn visible(&self) -> Result<Vec<Gpu>, CollectiveError>;

    /// The streams and events of one.
    ///
    /// # Errors
    /// The driver's.
    fn open(&self, index: u32) -> Result<Arc<dyn DeviceRuntime>, CollectiveError>;
}

/// Those of CUDA.
struct CudaDevices;

impl Devices for CudaDevices {
    fn visible(&self) -> Result<Vec<Gpu>, CollectiveError> {
        Gpu::visible()
    }

    fn open(&self, index: u32) -> Result<Arc<dyn DeviceRuntime>, CollectiveError> {
        Ok(Arc::new(CudaRuntime::open(index)?))
    }
}

/// A rank's GPU at work.
pub(crate) struct Accelerator {
    pub(crate) runtime: Arc<dyn DeviceRuntime>,
    pub(crate) nccl: NcclGroup,
    /// What the model's work runs on.
    pub(crate) stream: Stream,
}

/// Where a rank trains, and what the user should know of that.
pub(crate) struct Placement {
    /// The rank's GPU; none on the CPU.
    pub(crate) accelerator: Option<Accelerator>,
    pub(crate) warning: Option<String>,
}

/// Chooses each rank's device, moves the model to it, and connects it with the others'. All ranks call this.
///
/// # Errors
/// [`JobError::Invalid`] of `device`, the same on all ranks, where they can't all have what it asks for, and of a param that is
/// the CPU's alone; the model's; NCCL's.
pub(crate) fn occupy(
    params: &TrainingParams,
    group: &ProcessGroup,
    gpus: &Gpus,
    model: &mut dyn Model,
) -> Result<Placement, Cause> {
    let (index, warning) = choose(params.device, group, gpus, model)?;
    let accelerator = match index {
        None => None,
        Some(index) => {
            params.check_on_device()?;
            Compression::of(params).on_device()?;
            let model = model
                .on_cuda()
                .map_err(|reason| Cause::Model(reason.into()))?;
            let stream = model.to_device(index).map_err(Cause::Model)?;
            Some(connect(group, gpus, index, stream, model)?)
        }
    };
    Ok(Placement {
        accelerator,
        warning,
    })
}

/// Connects this rank's GPU with those of the others.
fn connect(
    group: &ProcessGroup,
    gpus: &Gpus,
    index: u32,
    stream: Stream,
    model: &mut dyn DeviceModel,
) -> Result<Accelerator, Cause> {
    let runtime = gpus.devices.open(index)?;
    let options = NcclOptions {
        directories: model.nccl_directories(),
        runtime: runtime.clone(),
    };
    let nccl = NcclGroup::connect(group, options)?;
    Ok(Accelerator {
        runtime,
        nccl,
        stream,
    })
}

/// This rank's GPU by its number, or the CPU, with what the user should know of that.
fn choose(
    choice: DeviceChoice,
    group: &ProcessGroup,
    gpus: &Gpus,
    model: &mut dyn Model,
) -> Result<(Option<u32>, Option<String>), Cause> {
    if choice == DeviceChoice::Cpu {
        return Ok((None, None));
    }
    let own = Offer::of(gpus, model);
    let message = serde_json::to_vec(&own).expect("an offer has string keys");
    let offers: Vec<Offer> = group
        .all_gather_bytes(&message)?
        .iter()
        .map(|message| serde_json::from_slice(message))
        .collect::<Result<_, _>>()
        .map_err(|error| Cause::Version(error.to_string()))?;
    let hosts: Vec<&str> = (0..offers.len()).map(|rank| group.host_of(rank)).collect();
    match assign(choice, &offers) {
        Ok(Assignment::Cpu) => Ok((None, unused(&offers))),
        Ok(Assignment::Cuda(indices)) => Ok((Some(indices[group.rank()]), None)),
        Err(allowed) => Err(JobError::invalid(
            "device",
            format!("{choice:?}").to_lowercase(),
            format!("{allowed} ({})", inventory(&offers, &hosts)),
        )
        .into()),
    }
}

/// What a rank has to train on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Offer {
    /// The UUIDs of the GPUs that it sees, by number.
    uuids: Vec<String>,
    /// The number of the one that is assigned to it.
    assigned: Option<u32>,
    /// Why it can use none, if so.
    obstacle: Option<String>,
    /// Whether it may share a GPU.
    shares: bool,
}

impl Offer {
    fn of(gpus: &Gpus, model: &mut dyn Model) -> Offer {
        let shares = env::var(SHARING).is_ok_and(|value| value == "1") && {
            let own = model.on_cuda();
            let directories = own.map_or(vec![], |model| model.nccl_directories());
            NcclLibrary::open(&directories).is_ok_and(|library| library.version() >= SHARED_SINCE)
        };
        let seen = match gpus.devices.visible() {
            Ok(seen) => seen,
            Err(error) => {
                return Offer {
                    obstacle: Some(error.to_string()),
                    shares,
                    ..Offer::default()
                };
            }
        };
        let uuids: Vec<String> = seen.into_iter().map(|gpu| gpu.uuid).collect();
        let found = match &gpus.assigned {
            None => Ok(None),
            Some(address) => find(address, &uuids).map(Some),
        };
        let usable = match uuids.is_empty() {
            true => Err("the process sees no GPU".into()),
            false => model.on_cuda().map(|_| ()),
        };
        Offer {
            assigned: found.clone().unwrap_or(None),
            obstacle: usable.err().or(found.err()),
            uuids,
            shares,
        }
    }
}

/// The number of the GPU at an address.
fn find(address: &str, uuids: &[String]) -> Result<u32, String> {
    let number = uuids.iter().position(|uuid| uuid == address);
    let number = number.or_else(|| address.parse().ok().filter(|&number| number < uuids.len()));
    match number {
        Some(number) => Ok(number as u32),
        None => Err(format!(
            "it was assigned GPU {address:?}, and sees {} (CUDA_VISIBLE_DEVICES)",
            uuids.len()
        )),
    }
}

/// Where all ranks train.
#[derive(Debug, PartialEq)]
enum Assignment {
    Cpu,
    /// The number of each rank's GPU, by rank.
    Cuda(Vec<u32>),
}

/// Gives every rank the GPU that is assigned to it, else the first that it sees and no other rank has.
///
/// # Errors
/// What `device` must be instead, and why.
fn assign(choice: DeviceChoice, offers: &[Offer]) -> Result<Assignment, String> {
    let able = offers
        .iter()
        .filter(|offer| offer.obstacle.is_none())
        .count();
    if able == 0 && choice == DeviceChoice::Auto {
        return Ok(Assignment::Cpu);
    }
    if able == 0 {
        return Err("cpu or auto: no worker can use a GPU".into());
    }
    if able < offers.len() {
        return Err("cpu: not every worker can use a GPU".into());
    }
    let shares = offers.iter().all(|offer| offer.shares);
    let mut taken = Taken::default();
    let mut indices: Vec<Option<u32>> = vec![None; offers.len()];
    // Those without a choice choose first.
    for (index, offer) in indices.iter_mut().zip(offers) {
        if let Some(assigned) = offer.assigned {
            if !taken.is_free(offer, assigned) && !shares {
                return Err(format!(
                    "cpu, or each worker be assigned a GPU of its own; {}",
                    sharing()
                ));
            }
            *index = Some(taken.take(offer, assigned));
        }
    }
    for (index, offer) in indices.iter_mut().zip(offers) {
        if index.is_none() {
            let least = taken.least_taken(offer);
            if !taken.is_free(offer, least) && !shares {
                return Err(format!(
                    "cpu, or numWorkers no more than there are GPUs; {}",
                    sharing()
                ));
            }
            *index = Some(taken.take(offer, least));
        }
    }
    Ok(Assignment::Cuda(indices.into_iter().flatten().collect()))
}

/// What has workers share a GPU, in words.
fn sharing() -> String {
    format!("{SHARING}=1 has workers share one, from NCCL {SHARED_SINCE} on")
}

/// How many ranks have each GPU, by UUID.
#[derive(Default)]
struct Taken<'a>(HashMap<&'a str, usize>);

impl<'a> Taken<'a> {
    fn count(&self, uuid: &str) -> usize {
        self.0.get(uuid).copied().unwrap_or(0)
    }

    fn is_free(&self, offer: &Offer, index: u32) -> bool {
        self.count(&offer.uuids[index as usize]) == 0
    }

    fn take(&mut self, offer: &'a Offer, index: u32) -> u32 {
        *self.0.entry(&offer.uuids[index as usize]).or_default() += 1;
        index
    }

    /// The number of the GPU that the fewest ranks have, the first of such.
    fn least_taken(&self, offer: &Offer) -> u32 {
        let counts = offer.uuids.iter().map(|uuid| self.count(uuid));
        let least = counts.enumerate().min_by_key(|&(_, count)| count);
        least.map_or(0, |(index, _)| index as u32)
    }
}

/// What to tell a user whose GPUs are not used.
fn unused(offers: &[Offer]) -> Option<String> {
    let offer = offers.iter().find(|offer| !offer.uuids.is_empty())?;
    let obstacle = offer.obstacle.as_deref().unwrap_or_default();
    Some(format!(
        "the workers train on the CPU, although there are GPUs: {obstacle}"
    ))
}

/// What each rank has, in words.
fn inventory(offers: &[Offer], hosts: &[&str]) -> String {
    let ranks = offers.iter().zip(hosts).enumerate();
    let lines = ranks.map(|(rank, (offer, host))| {
        let what = match (&offer.obstacle, offer.assigned) {
            (Some(obstacle), _) => obstacle.clone(),
            (None, Some(index)) => format!("was assigned {}", offer.uuids[index as usize]),
            (None, None) => format!("sees {}", offer.uuids.join(" and ")),
        };
        format!("worker {rank} on {host}: {what}")
    });
    lines.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sees(uuids: &[&str]) -> Offer {
        Offer {
            uuids: uuids.iter().map(|uuid| (*uuid).to_string()).collect(),
            ..Offer::default()
        }
    }

    fn assigned(uuids: &[&str], index: u32) -> Offer {
        Offer {
            assigned: Some(index),
            ..sees(uuids)
        }
    }

    fn lacks(obstacle: &str) -> Offer {
        Offer {
            obstacle: Some(obstacle.into()),
            ..Offer::default()
        }
    }

    fn cuda(indices: &[u32]) -> Result<Assignment, String> {
        Ok(Assignment::Cuda(indices.to_vec()))
    }

    /// Ranks of one machine see the same GPUs, those of several see others, under the same numbers.
    #[test]
    fn ranks_take_the_first_gpu_that_is_free() {
        let offers = [
            sees(&["a", "b"]),
            sees(&["a", "b"]),
            sees(&["c", "d"]),
            sees(&["c", "d"]),
        ];
        for choice in [DeviceChoice::Auto, DeviceChoice::Cuda] {
            assert_eq!(assign(choice, &offers), cuda(&[0, 1, 0, 1]));
        }
    }

    /// Where the cluster's manager hides the others, every rank sees its own as number 0.
    #[test]
    fn ranks_that_see_one_gpu_each_take_it() {
        let offers = [sees(&["a"]), sees(&["b"])];
        assert_eq!(assign(DeviceChoice::Auto, &offers), cuda(&[0, 0]));
    }

    #[test]
    fn what_is_assigned_is_taken_and_left_to_its_rank() {
        let offers = [sees(&["a", "b"]), assigned(&["a", "b"], 0)];
        assert_eq!(assign(DeviceChoice::Auto, &offers), cuda(&[1, 0]));
    }

    #[test]
    fn no_two_ranks_get_one_gpu_unless_they_may_share() {
        let mut offers = [sees(&["a"]), sees(&["a"])];
        let error = assign(DeviceChoice::Auto, &offers).unwrap_err();
        assert!(
            error.contains("no more than there are GPUs") && error.ends_with("from NCCL 2.30.0 on"),
            "{error}"
        );
        let twice = [assigned(&["a", "b"], 1), assigned(&["a", "b"], 1)];
        let error = assign(DeviceChoice::Cuda, &twice).unwrap_err();
        assert!(error.contains("a GPU of its own"), "{error}");
        offers.iter_mut().for_each(|offer| offer.shares = true);
        assert_eq!(assign(DeviceChoice::Auto, &offers), cuda(&[0, 0]));
        offers[0].shares = false;
        assert!(assign(DeviceChoice::Auto, &offers).is_err());
    }

    #[test]
    fn without_any_gpu_auto_is_the_cpu_and_cuda_is_refused() {
        let offers = [lacks("no driver"), lacks("no driver")];
        assert_eq!(assign(DeviceChoice::Auto, &offers), Ok(Assignment::Cpu));
        let error = assign(DeviceChoice::Cuda, &offers).unwrap_err();
        assert_eq!(error, "cpu or auto: no worker can use a GPU");
    }

    #[test]
    fn mixed_workers_are_refused_with_what_each_has() {
        let offers = [
            sees(&["a", "b"]),
            assigned(&["a", "b"], 1),
            lacks("no driver"),
        ];
        for choice in [DeviceChoice::Auto, DeviceChoice::Cuda] {
            let error = assign(choice, &offers).unwrap_err();
            assert_eq!(error, "cpu: not every worker can use a GPU");
        }
        assert_eq!(
            inventory(&offers, &["n1", "n1", "n2"]),
            "worker 0 on n1: sees a and b; worker 1 on n1: was assigned b; worker 2 on n2: no driver"
        );
    }

    #[test]
    fn addresses_are_numbers_among_the_visible_or_uuids() {
        let uuids = ["GPU-a".to_string(), "GPU-b".to_string()];
        assert_eq!(find("1", &uuids), Ok(1));
        assert_eq!(find("GPU-a", &uuids), Ok(0));
        for address in ["2", "GPU-c", "-1", ""] {
            let error = find(address, &uuids).unwrap_err();
            assert!(error.contains("sees 2"), "{error}");
        }
    }

    #[test]
    fn gpus_that_lie_idle_are_told_of() {
        assert_eq!(unused(&[lacks("no driver")]), None);
        let idle = Offer {
            obstacle: Some("torch is built without CUDA".into()),
            ..sees(&["a"])
        };
        let warning = unused(&[idle]).unwrap();
        assert!(
            warning.ends_with("there are GPUs: torch is built without CUDA"),
            "{warning}"
        );
    }
}
