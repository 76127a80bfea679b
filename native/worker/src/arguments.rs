//! The command line.

use std::net::IpAddr;
use std::path::PathBuf;

/// What `--help` prints.
pub const USAGE: &str = "\
flambeau-worker trains, checks, scores and inspects libtorch programs.

    flambeau-worker train --job JOB.json --rank R --world-size N --rendezvous HOST:PORT
            [--secret-file FILE] [--bind-address IP] [--transport auto|sharedMemory|tcp] [--gpus ADDRESSES]
            [--report-steps]
        Trains one rank of a job. Rank 0 listens at the rendezvous. All ranks hold the same secret, in a
        file or in FLAMBEAU_SECRET; a single rank needs none. Tells its progress in JSON lines.
        ADDRESSES are the GPUs that a scheduler has assigned to the rank, with commas between: numbers
        among those that the process sees, or UUIDs. The rank takes the first. Without them, ranks that
        share a machine take one each.
    flambeau-worker train --launcher [--gpus ADDRESSES]
        The same for a program that starts it and speaks JSON lines with it.
    flambeau-worker launch --job JOB.json [--transport auto|sharedMemory|tcp] [--report-steps]
        Trains a job with all its numWorkers ranks on this machine. After a lost rank it starts them again from
        the newest checkpoint, up to maxRestarts times. The job's attempt gives the workDir; each attempt has
        an id of its own there. Tells its progress in JSON lines, the result or the error in the last one.
    flambeau-worker check --job JOB.json
        Tries the program of a job on two rows, forward and backward, and says what is wrong with it, in one
        JSON line. With - for the file, the job is the first line of standard input, whose end ends
        the check.
    flambeau-worker score MODEL INPUT.parquet... OUTPUT.parquet [--input COLUMN[,COLUMN...]]...
            [--batch-size N] [--num-threads N] [--gpu N]
        Scores rows with a saved model or a program. Columns are those that the model was trained on, or,
        for each argument of the program, those of one --input. Computes on the CPU, or on the GPU of this
        number among those that the process sees.
    flambeau-worker inspect PATH...
        Prints what a saved model, a program, Parquet shards, a checkpoint (attempts/<id>/checkpoints/<step> of a
        work directory) or a run (its runs/<id>.json) hold.
    flambeau-worker libtorch
        Prints which libtorch is taken, as JSON.

Each takes --libtorch DIR; without it libtorch is that of LIBTORCH, else that of torch in the Python named by
FLAMBEAU_PYTHON, else in python3.";

/// A command line that was understood.
#[derive(Debug, PartialEq)]
pub struct Arguments {
    /// What to do.
    pub command: Command,
    /// Where libtorch is, if the command line says so.
    pub libtorch: Option<PathBuf>,
}

/// What to do.
#[derive(Debug, PartialEq)]
pub enum Command {
    /// Print the usage.
    Help,
    /// Print the version.
    Version,
    /// Say which libtorch is found.
    Libtorch,
    /// Train as the child of a launcher.
    Child {
        /// The GPUs that the rank was assigned; none where it was assigned none.
        gpus: Option<Vec<String>>,
    },
    /// Train one rank that finds the others by itself.
    Train(Box<TrainArguments>),
    /// Train all ranks on this machine.
    Launch(LaunchArguments),
    /// Try the program of a job.
    Check {
        /// The file with the job, or `-`.
        job: String,
    },
    /// Score Parquet files.
    Score(ScoreArguments),
    /// Print what is there.
    Inspect {
        /// A saved model, a program, shards, a checkpoint, or a run.
        paths: Vec<String>,
    },
}

/// One rank of a training without a launcher.
#[derive(Debug, PartialEq)]
pub struct TrainArguments {
    /// The file with the job.
    pub job: PathBuf,
    /// This rank.
    pub rank: usize,
    /// The number of ranks.
    pub world_size: usize,
    /// `host:port` where rank 0 listens.
    pub rendezvous: String,
    /// The file with the secret; else it is in the environment.
    pub secret_file: Option<PathBuf>,
    /// The address that the other ranks reach this one at; else the one that the way to the rendezvous begins at.
    pub bind_address: Option<IpAddr>,
    /// `auto`, `sharedMemory` or `tcp`.
    pub transport: String,
    /// The GPUs that the rank was assigned; none where it was assigned none.
    pub gpus: Option<Vec<String>>,
    /// Whether rank 0 tells of each step.
    pub report_steps: bool,
}

/// All ranks of a training.
#[derive(Debug, PartialEq)]
pub struct LaunchArguments {
    /// The file with the job.
    pub job: PathBuf,
    /// `auto`, `sharedMemory` or `tcp`.
    pub transport: String,
    /// Whether rank 0 tells of each step.
    pub report_steps: bool,
}

/// Rows to score.
#[derive(Debug, PartialEq)]
pub struct ScoreArguments {
    /// The directory of a saved model, or the file of a program.
    pub model: String,
    /// The Parquet files to read.
    pub rows: Vec<String>,
    /// The Parquet file to write.
    pub output: String,
    /// The columns of each argument of the program; empty for those of the model.
    pub inputs: Vec<Vec<String>>,
    /// Rows that are scored at once.
    pub batch_size: usize,
    /// Threads to compute with; all cores where it is not given.
    pub num_threads: Option<usize>,
    /// The GPU to compute on; the CPU where it is not given.
    pub gpu: Option<usize>,
}

/// Understands the command line, without the program's name.
///
/// # Errors
/// One sentence that says what is wrong and what is allowed.
pub fn parse(arguments: &[String]) -> Result<Arguments, String> {
    let Some((command, rest)) = arguments.split_first() else {
        return Err(
            "a command is missing: train, launch, check, score, inspect or libtorch".into(),
        );
    };
    match command.as_str() {
        "--help" | "-h" | "help" => return Ok(plain(Command::Help)),
        "--version" | "-V" => return Ok(plain(Command::Version)),
        _ if rest.iter().any(|argument| argument == "--help") => return Ok(plain(Command::Help)),
        _ => {}
    }
    let mut options = Options::read(command, rest)?;
    let libtorch = options.take("--libtorch")?.map(PathBuf::from);
    let command = match command.as_str() {
        "libtorch" => Command::Libtorch,
        "train" if options.flag("--launcher") => Command::Child {
            gpus: options.gpus()?,
        },
        "train" => Command::Train(Box::new(TrainArguments {
            job: options.need("--job")?.into(),
            rank: options.number("--rank")?.ok_or_else(|| missing("--rank"))?,
            world_size: options
                .number("--world-size")?
                .ok_or_else(|| missing("--world-size"))?,
            rendezvous: options.need("--rendezvous")?,
            secret_file: options.take("--secret-file")?.map(PathBuf::from),
            bind_address: options
                .take("--bind-address")?
                .map(|text| {
                    text.parse()
                        .map_err(|_| format!("--bind-address is {text}, but must be an IP address"))
                })
                .transpose()?,
            transport: options.take("--transport")?.unwrap_or("auto".into()),
            gpus: options.gpus()?,
            report_steps: options.flag("--report-steps"),
        })),
        "launch" => Command::Launch(LaunchArguments {
            job: options.need("--job")?.into(),
            transport: options.take("--transport")?.unwrap_or("auto".into()),
            report_steps: options.flag("--report-steps"),
        }),
        "check" => Command::Check {
            job: options.need("--job")?,
        },
        "score" => {
            let inputs = options.all("--input");
            let arguments = ScoreArguments {
                inputs: inputs
                    .iter()
                    .map(|columns| columns.split(',').map(str::to_owned).collect())
                    .collect(),
                batch_size: options.number("--batch-size")?.unwrap_or(4096).max(1),
                num_threads: options.number("--num-threads")?,
                gpu: options.number("--gpu")?,
                ..score_paths(std::mem::take(&mut options.paths))?
            };
            Command::Score(arguments)
        }
        "inspect" if options.paths.is_empty() => {
            return Err(
                "inspect needs a path: a saved model, a program, Parquet shards, a checkpoint or a run"
                    .into(),
            );
        }
        "inspect" => Command::Inspect {
            paths: std::mem::take(&mut options.paths),
        },
        other => {
            return Err(format!(
                "there is no command {other}; the commands are train, launch, check, score, inspect and libtorch"
            ));
        }
    };
    options.end()?;
    Ok(Arguments { command, libtorch })
}

fn plain(command: Command) -> Arguments {
    Arguments {
        command,
        libtorch: None,
    }
}

fn missing(option: &str) -> String {
    format!("{option} is missing")
}

fn score_paths(mut paths: Vec<String>) -> Result<ScoreArguments, String> {
    if paths.len() < 3 {
        return Err(
            "score needs a model, at least one Parquet file to read and one to write".into(),
        );
    }
    let output = paths.pop().unwrap_or_default();
    Ok(ScoreArguments {
        model: paths.remove(0),
        rows: paths,
        output,
        inputs: vec![],
        batch_size: 0,
        num_threads: None,
        gpu: None,
    })
}

const FLAGS: [&str; 2] = ["--launcher", "--report-steps"];

/// The options and paths of a command that are not yet taken.
struct Options {
    command: String,
    named: Vec<(String, String)>,
    flags: Vec<String>,
    paths: Vec<String>,
}

impl Options {
    fn read(command: &str, arguments: &[String]) -> Result<Options, String> {
        let mut options = Options {
            command: command.into(),
            named: vec![],
            flags: vec![],
            paths: vec![],
        };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            if !argument.starts_with("--") {
                options.paths.push(argument.clone());
            } else if FLAGS.contains(&argument.as_str()) {
                options.flags.push(argument.clone());
            } else if let Some((name, value)) = argument.split_once('=') {
                options.named.push((name.into(), value.into()));
            } else {
                let value = rest.next().ok_or(format!("{argument} needs a value"))?;
                options.named.push((argument.clone(), value.clone()));
            }
        }
        Ok(options)
    }

    fn all(&mut self, name: &str) -> Vec<String> {
        let (taken, left) = std::mem::take(&mut self.named)
            .into_iter()
            .partition(|(other, _)| other == name);
        self.named = left;
        taken.into_iter().map(|(_, value)| value).collect()
    }

    fn take(&mut self, name: &str) -> Result<Option<String>, String> {
        let mut values = self.all(name);
        if values.len() > 1 {
            return Err(format!("{name} is given twice"));
        }
        Ok(values.pop())
    }

    fn need(&mut self, name: &str) -> Result<String, String> {
        self.take(name)?.ok_or_else(|| missing(name))
    }

    fn number(&mut self, name: &str) -> Result<Option<usize>, String> {
        self.take(name)?
            .map(|text| {
                text.parse()
                    .map_err(|_| format!("{name} is {text}, but must be a whole number"))
            })
            .transpose()
    }

    /// The addresses of `--gpus`.
    fn gpus(&mut self) -> Result<Option<Vec<String>>, String> {
        let Some(text) = self.take("--gpus")? else {
            return Ok(None);
        };
        let addresses: Vec<String> = text.split(',').map(|one| one.trim().into()).collect();
        if addresses.iter().any(String::is_empty) {
            return Err(format!(
                "--gpus is {text:?}, but must be addresses of GPUs with commas between: numbers or UUIDs"
            ));
        }
        Ok(Some(addresses))
    }

    fn flag(&mut self, name: &str) -> bool {
        let before = self.flags.len();
        self.flags.retain(|flag| flag != name);
        self.flags.len() < before
    }

    /// Refuses what no one took.
    fn end(self) -> Result<(), String> {
        let named = self.named.into_iter().map(|(name, _)| name);
        match named.chain(self.flags).chain(self.paths).next() {
            Some(argument) => Err(format!("{} takes no {argument} here", self.command)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Arguments, String> {
        let arguments: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        parse(&arguments)
    }

    #[test]
    fn commands_are_understood() {
        let launched = parsed("train --launcher --libtorch /opt/libtorch").unwrap();
        assert_eq!(launched.command, Command::Child { gpus: None });
        assert_eq!(launched.libtorch, Some("/opt/libtorch".into()));
        let line = "train --job j.json --rank=1 --world-size 2 --rendezvous h:1 --report-steps";
        let Command::Train(train) = parsed(line).unwrap().command else {
            panic!("{line} is a training");
        };
        assert_eq!((train.rank, train.world_size), (1, 2));
        assert!(train.report_steps && train.transport == "auto");
        let assigned = parsed("train --launcher --gpus 1,GPU-a").unwrap().command;
        let gpus = Some(vec!["1".into(), "GPU-a".into()]);
        assert_eq!(assigned, Command::Child { gpus });
        let line = "score model a.parquet b.parquet out.parquet --input x --input a,b";
        let Command::Score(score) = parsed(line).unwrap().command else {
            panic!("{line} is a scoring");
        };
        assert_eq!(score.rows, ["a.parquet", "b.parquet"]);
        assert_eq!(score.inputs, [vec!["x"], vec!["a", "b"]]);
    }

    #[test]
    fn help_is_given_for_a_command_too() {
        for line in ["--help", "train --help", "score model --help"] {
            assert_eq!(parsed(line).unwrap().command, Command::Help, "{line}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (line, said) in [
            ("", "a command is missing"),
            ("learn", "there is no command learn"),
            ("train --rank 0", "--job is missing"),
            ("train --launcher --rank 0", "train takes no --rank here"),
            (
                "train --job j --rank x --world-size 1 --rendezvous h:1",
                "--rank is x",
            ),
            ("train --job", "--job needs a value"),
            ("launch --job j --rank 0", "launch takes no --rank here"),
            ("train --launcher --gpus 0,,1", "--gpus is \"0,,1\""),
            ("train --launcher --gpus=", "must be addresses of GPUs"),
            ("score model rows.parquet", "score needs a model"),
            ("inspect", "inspect needs a path"),
            ("libtorch now", "libtorch takes no now here"),
            (
                "inspect a --libtorch b --libtorch c",
                "--libtorch is given twice",
            ),
        ] {
            let refused = parsed(line).unwrap_err();
            assert!(refused.contains(said), "{line}: {refused}");
        }
    }
}
