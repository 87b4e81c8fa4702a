//! Every interleaving of two cores on the registry: a key never has two cells, also while it is being swept.
//!
//! `std::sync::Arc` is not modelled: that a swept cell shows everything its last holder did is `Arc::get_mut`'s promise
//! and is taken on trust here.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p shards --release --test loom_registry`. Compiles to nothing otherwise.
#![cfg(loom)]

use std::sync::Arc;

use loom::thread;
use shards::limit::{AttachDecl, Limit, LimitDecl};
use shards::plan::{CompileInput, Counter, compile};
use shards::registry::Registry;
use shards::scope::Node;
use shards::units::{MonoNs, Now, WallMs};

const NOW: Now = Now { mono: MonoNs(5_000_000_000), wall: WallMs(5_000) };

fn rpm() -> Arc<Limit> {
    let decl = LimitDecl {
        id: Some("rpm".to_owned()),
        kind: Some("rpm".to_owned()),
        attach: Some(AttachDecl { node: Some("__global".to_owned()), level: None }),
        amount: Some("60".to_owned()),
        period: Some("1m".to_owned()),
        ..LimitDecl::default()
    };
    let compiled = compile(CompileInput { limits: &[decl], ..CompileInput::default() });
    compiled.limits.expect("a plain limit").limits.remove(0)
}

fn cell(registry: &Registry, limit: &Limit) -> Arc<shards::cell::Cell> {
    match registry.counter(limit, &Node::global()) {
        Counter::Cell(cell) => cell,
        other => panic!("a cell expected, got {other:?}"),
    }
}

#[test]
fn two_cores_that_ask_at_once_get_one_cell() {
    let limit = rpm();
    loom::model(move || {
        let registry = loom::sync::Arc::new(Registry::new());
        let (other, limit_there) = (registry.clone(), limit.clone());
        let there = thread::spawn(move || cell(&other, &limit_there));
        let here = cell(&registry, &limit);
        assert!(Arc::ptr_eq(&here, &there.join().expect("no panic")));
        assert_eq!(registry.len(), 1);
    });
}

#[test]
fn a_cell_is_never_swept_from_under_a_core_that_just_looked_it_up() {
    let limit = rpm();
    let rate = limit.rate.expect("rpm has a rate");
    loom::model(move || {
        let registry = loom::sync::Arc::new(Registry::new());
        drop(cell(&registry, &limit)); // at rest, held by nobody: a sweep may take it
        let (other, limit_there) = (registry.clone(), limit.clone());
        let there = thread::spawn(move || {
            let cell = cell(&other, &limit_there);
            assert!(cell.acquire(&rate, NOW.mono, 1).is_ok());
            cell
        });
        registry.sweep(0, 1, NOW);
        let there = there.join().expect("no panic");
        assert!(Arc::ptr_eq(&there, &cell(&registry, &limit)), "what was counted is what the next request reads");
    });
}
