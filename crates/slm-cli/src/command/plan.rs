//! `plan`: what a composition needs in memory, beside what it then takes.

use serde_json::json;
use slm_runtime::Session;
use slm_runtime::budget::{AdapterCost, Budgets, Component, MemoryPlan, Workload};

use crate::args::PlanArgs;
use crate::command::bench::peak_rss_bytes;
use crate::error::CliError;
use crate::model::{composition, engine_of, profile};
use crate::world::World;

/// Plans a session, compares it with the budgets, and then measures one pass of it.
pub(crate) fn plan(world: &World, args: &PlanArgs) -> Result<(), CliError> {
    let engine = engine_of(&args.engine)?;
    let profile = profile(&args.engine);
    let n_workers = engine.exec.n_workers();
    let composition = composition(world, &args.model, &engine)?;
    let context_length = composition.base().config().context_length;
    let positions = args.positions.unwrap_or(context_length);
    if positions > context_length {
        return Err(CliError::Value {
            option: "--positions",
            value: positions.to_string(),
            reason: format!("the model's context is {context_length}"),
        });
    }
    let work = Workload { positions, chunk: args.engine.chunk, all_logits: false };
    let plan = MemoryPlan::of_session(&composition, &profile, n_workers, work)?;
    let adapters = AdapterCost::of(&composition);
    let budgets = Budgets::from(match &args.model.model {
        None => world.policy()?.budget,
        // A model that is no store's has no store's policy.
        Some(_) => slm_manifest::policy::BudgetPolicy::default(),
    });
    budgets.check(&plan).map_err(slm_runtime::RuntimeError::from)?;
    let mut session = Session::new(composition.clone(), profile, engine)?;
    session.reserve(positions as usize)?;
    let tokens = vec![0; args.engine.chunk.min(positions as usize)];
    session.advance(&tokens, args.engine.chunk)?;
    let object = json!({
        "composition": composition.id(),
        "execution": session.execution_id(),
        "positions": positions,
        "chunk": args.engine.chunk,
        "threads": n_workers,
        "plan": {
            "base": plan.base,
            "adapters": plan.adapters,
            "dequantization_scratch": plan.scratch,
            "requantization_scratch": plan.requantization,
            "kv": plan.kv,
            "overhead": plan.overhead,
            "total": plan.total(),
            "extra_macs_per_token": plan.extra_macs,
            "extra_bytes_per_token": plan.extra_bytes,
        },
        "adapters": adapters.iter().map(|cost| json!({
            "name": cost.name,
            "adapter": cost.adapter,
            "bytes": cost.bytes,
            "extra_macs_per_token": cost.extra_macs,
            "extra_bytes_per_token": cost.extra_bytes,
        })).collect::<Vec<_>>(),
        "budgets": {
            "base": budgets.base,
            "adapters": budgets.adapters,
            "kv": budgets.kv,
            "scratch": budgets.scratch,
            "total": budgets.total,
        },
        "measured": {
            "base": composition.base().weight_bytes(),
            "adapters": composition.stack().bytes(),
            "kv": session.kv_bytes(),
            "peak_rss": peak_rss_bytes(),
        },
    });
    let budget = |component| {
        budgets.of(component).map_or_else(String::new, |bytes| format!("  of {bytes} allowed"))
    };
    let row = |what: &str, planned: u64, note: String| format!("{what:<24}{planned:>15}{note}");
    let measured = |bytes: u64| format!("  measured {bytes}");
    let mut lines = vec![
        format!("composition {}", composition.id()),
        format!("{positions} positions, passes of {}, {n_workers} threads", args.engine.chunk),
        row(
            "base",
            plan.base,
            measured(composition.base().weight_bytes()) + &budget(Component::Base),
        ),
        row(
            "adapters",
            plan.adapters,
            measured(composition.stack().bytes()) + &budget(Component::Adapters),
        ),
        row("dequantization scratch", plan.scratch, budget(Component::Scratch)),
        row(
            "requantization scratch",
            plan.requantization,
            "  nothing is ever requantized".to_owned(),
        ),
        row("kv", plan.kv, measured(session.kv_bytes()) + &budget(Component::Kv)),
        row("overhead", plan.overhead, String::new()),
        row("total", plan.total(), budget(Component::Total)),
    ];
    if let Some(peak) = peak_rss_bytes() {
        lines.push(row("peak of this process", peak, String::new()));
    }
    for cost in &adapters {
        lines.push(format!(
            "{}: {} bytes; each token {} multiplications and {} bytes more",
            cost.name, cost.bytes, cost.extra_macs, cost.extra_bytes
        ));
    }
    world.output.result(object, &lines);
    Ok(())
}
