//! `graph`: what a flow can do, drawn without running it.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::cli::{
    compile,
    context::Context,
    exit::{Exit, Stop},
};

/// Draw the flow of a blueprint
#[derive(Debug, Args)]
pub struct Graph {
    /// A Lua file, or a flow as JSON
    file: PathBuf,
    /// Format of the drawing
    #[arg(long, value_enum, default_value_t = Format::Tree)]
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A tree of text lines
    Tree,
    /// Mermaid, for Markdown pages
    Mermaid,
    /// DOT, for Graphviz
    Dot,
    /// An SVG picture, for browsers
    Svg,
}

impl Graph {
    /// The file that is drawn.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Runs the command.
    ///
    /// # Errors
    /// A file that is no blueprint.
    pub fn execute(&self, cx: &Context) -> Result<Exit> {
        let bundle = compile::load(&self.file)?;
        let part = compile::graph(&bundle, &cx.config).ok_or_else(|| {
            let shown = self.file.display();
            Stop::new(Exit::Invalid, format!("{shown} has errors"))
                .next(format!("moonswarm check {shown}"))
        })?;
        let drawn = match self.format {
            Format::Tree => part.tree(),
            Format::Mermaid => part.mermaid(),
            Format::Dot => part.dot(),
            Format::Svg => part.svg(),
        };
        if cx.terminal.json {
            cx.terminal.print_json(&serde_json::json!({ "graph": drawn }))?;
        } else {
            cx.terminal.print(drawn.trim_end())?;
        }
        Ok(Exit::Ok)
    }
}
