//! `evergate simulate`: a plan carried out; a table or JSON on standard output, figures and a page in a folder.

use super::output;
use super::progress::Bar;
use super::{SimulateArgs, WRONG};
use crate::bench_crypto::CryptoCost;
use anyhow::{Context, Result, anyhow};
use evergate_base::Table;
use evergate_sslsard::{Costs, Plan, Scheme, Study, costs as costs_used, differences, report, study, table};
use std::fmt::Write as _;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

/// The report's page in its folder.
const PAGE: &str = "report.html";

pub(super) fn simulate(args: &SimulateArgs) -> u8 {
    let (plan, text) = match read(args) {
        Ok(read) => read,
        Err(error) => {
            output::print_error(format_args!("{error}"));
            return WRONG;
        }
    };
    let folder = match (&args.out, args.json) {
        (None, true) => None,
        (None, false) => Some(default_folder(&args.plan)),
        (Some(folder), _) => Some(folder.clone()),
    };
    // Before the simulation, which may take hours.
    if let Some(Err(error)) = folder.as_deref().map(make) {
        return output::failed(&error);
    }
    let threads =
        args.threads.or_else(|| std::thread::available_parallelism().ok()).unwrap_or(NonZeroUsize::MIN);
    let bar = Bar::new();
    let study = study(&plan, threads, |done, of, label| bar.show(done, of, label));
    bar.clear();
    let printed = match args.json {
        true => output::json(&study.rows),
        false => output::text(&shown(&study)),
    };
    let Some(folder) = folder else { return printed };
    match write(&study, &text, args, &folder) {
        Ok(page) => {
            output::print_error(format_args!("figures and page: {}", page.display()));
            printed
        }
        Err(error) => output::failed(&error),
    }
}

/// The plan with what the command line changes, and its text. The error is ready to be shown.
fn read(args: &SimulateArgs) -> Result<(Plan, String), String> {
    let shown = |error: anyhow::Error| format!("error: {error:#}");
    let file = args.plan.display().to_string();
    let text = std::fs::read_to_string(&args.plan)
        .with_context(|| format!("cannot read the plan {file}: name a file such as examples/sslsard.toml"))
        .map_err(shown)?;
    let costs = args.costs.as_deref().zip(args.handshake.as_deref()).map(|(path, name)| costs(path, name));
    let plan =
        Plan::parse(&file, &text, costs.transpose().map_err(shown)?).map_err(|error| error.to_string())?;
    let mut policies: Vec<Scheme> = Vec::new();
    for name in &args.policy {
        match Scheme::named(name) {
            Some(scheme) if policies.contains(&scheme) => {}
            Some(scheme) => policies.push(scheme),
            None => {
                let remedy = Scheme::remedy(name);
                return Err(format!("error: --policy {name}: there is no such policy\n  remedy: {remedy}"));
            }
        }
    }
    Ok((plan.with_policies(policies).with_seeds(args.seeds, args.seed), text))
}

/// One kind of handshake from what `evergate bench crypto --json` printed.
fn costs(path: &Path, handshake: &str) -> Result<Costs> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let all: Vec<CryptoCost> = serde_json::from_str(&text)
        .with_context(|| format!("{} is not what `evergate bench crypto --json` prints", path.display()))?;
    let names = || all.iter().map(|cost| cost.handshake.as_str()).collect::<Vec<_>>().join(", ");
    let wanted = handshake.to_lowercase().replace('-', "_");
    let cost = all
        .iter()
        .find(|cost| cost.handshake == wanted)
        .ok_or_else(|| anyhow!("--handshake {handshake}: {} has only {}", path.display(), names()))?;
    Ok(Costs { full_us: cost.full_us, resumed_us: cost.resumed_us, bulk_mbit_per_s: cost.bulk_mbit_per_s })
}

fn shown(study: &Study) -> String {
    let mut text = format!("{}\n\n{}", study.plan.title, aligned(table(study)));
    if let (Some(rows), Some(first)) = (differences(study), study.plan.policies.first()) {
        let _ = write!(text, "\nDifferences to {} under the same seeds\n\n{}", first.name, aligned(rows));
    }
    let _ = write!(
        text,
        "\n{} s simulated, {} seeds from {} on",
        study.plan.horizon_s(),
        study.plan.seeds,
        study.plan.seed
    );
    text += if study.plan.seeds > 1 { "; ± is half the 95 % confidence interval\n" } else { "\n" };
    if let Some(costs) = costs_used(&study.plan) {
        let _ = writeln!(text, "{costs}");
    }
    text
}

/// The first row is the head.
fn aligned(rows: Vec<Vec<String>>) -> String {
    let mut rows = rows.into_iter();
    let head: Vec<String> = rows.next().unwrap_or_default().iter().map(|cell| cell.to_uppercase()).collect();
    let mut shown = Table::new(&head.iter().map(String::as_str).collect::<Vec<_>>());
    rows.for_each(|row| shown.row(row));
    shown.show("")
}

/// `plans/x.toml` gives `x-report` in the working folder.
fn default_folder(plan: &Path) -> PathBuf {
    let stem = plan.file_stem().map_or_else(|| "plan".into(), |stem| stem.to_string_lossy());
    PathBuf::from(format!("{stem}-report"))
}

/// The folder of a report, with a page that can be written.
fn make(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)
        .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    let page = folder.join(PAGE);
    let opened = std::fs::OpenOptions::new().create(true).append(true).open(&page);
    opened.with_context(|| format!("cannot write {}", page.display())).map(drop)
}

fn write(study: &Study, text: &str, args: &SimulateArgs, folder: &Path) -> Result<PathBuf> {
    for file in report(study, text, &command(study, args)) {
        let path = folder.join(&file.name);
        std::fs::write(&path, file.text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(folder.join(PAGE))
}

/// The command that reproduces this report. File names come without folders, which differ between machines.
fn command(study: &Study, args: &SimulateArgs) -> String {
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let plan = &study.plan;
    let mut command =
        format!("evergate simulate {} --seeds {} --seed {}", name(&args.plan), plan.seeds, plan.seed);
    for policy in &plan.policies {
        let _ = write!(command, " --policy {}", policy.name);
    }
    if let (Some(costs), Some(handshake)) = (&args.costs, &args.handshake) {
        let _ = write!(command, " --costs {} --handshake {handshake}", name(costs));
    }
    command
}
