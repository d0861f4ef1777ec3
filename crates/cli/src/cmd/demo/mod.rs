//! `tenure demo`: the promise, seen live.
//!
//! One broker, three sessions, and between them proxies that break every connection in turn. Sockets die all the
//! time; what each session sees of the other two never changes.
//!
//! Where to read next: `stage` sets it up, `watcher` is what one session sees, `score` keeps count and decides
//! what breaks next, `picture` draws it, `report` judges it.

mod picture;
mod report;
mod score;
mod stage;
mod watcher;

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use clap::Args as ClapArgs;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::Failure;
use crate::output::{Paint, print, println};
use picture::Screen;
use score::{NAMES, Score};
use stage::Stage;

/// Between two looks at what may break next, and between two pictures.
const BEAT: Duration = Duration::from_millis(100);
/// How long after its time the demonstration waits for the last session to be back: twice a lease.
const OVERTIME: Duration = Duration::from_secs(12);

/// See three sessions live through twenty broken connections. Starts a broker of its own in a temporary
/// directory; nothing of yours is touched.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Exit code 0: every connection that was broken led to a resume, and no session saw \
                        another leave or join; in 20 seconds at least 20 were broken.")]
pub(crate) struct Args {
    /// How long to go on breaking connections
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(5..=3_600))]
    seconds: u64,
    /// Print only the outcome, as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    crate::block_on(async move {
        // From here on a signal ends the demonstration, not the process: there is a directory to remove.
        let mut signals = Signals::watch()?;
        let mut stage = Box::pin(Stage::set()).await?;
        let mut show = Show::new(&args);
        let interrupted = show.play(&mut stage, &mut signals).await;
        let keys = stage.keys();
        stage.strike().await;
        show.close();
        if args.json {
            println(&report::json(&show.score, args.seconds, keys, interrupted).to_string());
        } else {
            print(&report::text(&show.score, Paint::stdout()));
        }
        report::verdict(&show.score, args.seconds, interrupted).map_err(Failure::Failed)
    })
}

/// What makes it end early.
struct Signals([Signal; 3]);

impl Signals {
    fn watch() -> Result<Signals, Failure> {
        let watch =
            |kind| signal(kind).map_err(|error| Failure::Failed(format!("watch for signals: {error}")));
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let [interrupt, terminate, hangup] = kinds.map(watch);
        Ok(Signals([interrupt?, terminate?, hangup?]))
    }

    /// Waits for any of them. Cancel-safe.
    async fn any(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

/// How the audience follows it.
enum Telling {
    /// A picture, redrawn in place.
    Live(Screen),
    /// A line for each thing that happens.
    Lines,
    /// Only the outcome.
    Silent,
}

struct Show {
    score: Score,
    time: Duration,
    began: Instant,
    telling: Telling,
    /// Whether nobody reads any more.
    deserted: bool,
}

impl Show {
    fn new(args: &Args) -> Show {
        let terminal =
            std::io::stdout().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
        let telling = match (args.json, terminal) {
            (true, _) => Telling::Silent,
            (false, true) => Telling::Live(Screen::open(Paint::stdout())),
            (false, false) => {
                eprintln!(
                    "three sessions, one broker, and {} s of a network that keeps breaking",
                    args.seconds
                );
                Telling::Lines
            }
        };
        let time = Duration::from_secs(args.seconds);
        Show { score: Score::new(time), time, began: Instant::now(), telling, deserted: false }
    }

    /// Plays to the end; says whether it was cut short.
    async fn play(&mut self, stage: &mut Stage, signals: &mut Signals) -> bool {
        let mut beat = tokio::time::interval(BEAT);
        beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            // Every branch is cancel-safe: the ones that lose have taken nothing.
            tokio::select! {
                (index, news) = stage.news() => {
                    let line = self.score.hear(self.began.elapsed(), index, news);
                    line.iter().for_each(|line| self.tell(line));
                }
                _ = beat.tick() => self.beat(stage),
                () = signals.any() => return true,
            }
            let now = self.began.elapsed();
            if now >= self.time && (self.score.is_settled() || now >= self.time + OVERTIME) {
                self.draw();
                return false;
            }
            if self.deserted {
                return true;
            }
        }
    }

    fn beat(&mut self, stage: &Stage) {
        let now = self.began.elapsed();
        if let Some((index, fault)) = self.score.next_flap(now) {
            stage.break_connection(index, fault);
            self.score.flapped(now, index, fault);
            self.tell(&format!("{:<6} {}", NAMES[index], score::broken(fault)));
        }
        self.draw();
    }

    fn tell(&mut self, line: &str) {
        if let Telling::Lines = self.telling {
            let line = format!("{:>5.1} s  {line}\n", self.began.elapsed().as_secs_f64());
            self.deserted |= !put(&line);
        }
    }

    fn draw(&mut self) {
        let now = self.began.elapsed();
        if let Telling::Live(screen) = &mut self.telling {
            self.deserted |= !screen.draw(&self.score, now, self.time);
        }
    }

    /// Lets go of the terminal; what follows is printed below the last picture.
    fn close(&mut self) {
        if let Telling::Lines = self.telling {
            println("");
        }
        self.telling = Telling::Silent;
    }
}

/// Prints; `false` when nobody reads any more. Unlike `output::print` it does not end the process then.
fn put(text: &str) -> bool {
    let mut stdout = std::io::stdout();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).is_ok()
}
