//! A CUDA device's own streams and events, where there is one.

use flambeau_collective::{CollectiveError, CudaRuntime, DeviceRuntime, Gpu};

/// With a GPU, its streams and events work; without, the error says what is missing.
#[test]
fn a_cuda_device_is_opened_or_missed_by_name() {
    let runtime = match CudaRuntime::open(0) {
        Ok(runtime) => runtime,
        Err(CollectiveError::Device { call, message }) => {
            assert!(
                message.contains("no NVIDIA driver")
                    || call.starts_with("cu")
                    || message.contains("no cuda:0"),
                "{call}: {message}"
            );
            println!("SKIPPED: {call}: {message}");
            return;
        }
        Err(other) => panic!("{other}"),
    };
    let (first, second) = (
        runtime.create_stream().unwrap(),
        runtime.create_stream().unwrap(),
    );
    let event = runtime.create_event().unwrap();
    runtime.ignore_captures().unwrap();
    // SAFETY: all three are alive, of this device, and freed once.
    unsafe {
        runtime.record(event, first).unwrap();
        runtime.wait(second, event).unwrap();
        while !runtime.is_done(event).unwrap() {}
        runtime.destroy_event(event);
        runtime.destroy_stream(first);
        runtime.destroy_stream(second);
    }
    let gpus = Gpu::visible().unwrap();
    assert!(
        gpus[0].uuid.starts_with("GPU-") && gpus[0].index == 0,
        "{gpus:?}"
    );
    let beyond = CudaRuntime::open(1000).err().unwrap().to_string();
    assert!(beyond.contains("there is no cuda:1000"), "{beyond}");
}
