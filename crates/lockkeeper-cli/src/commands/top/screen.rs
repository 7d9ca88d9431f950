//! The terminal while `top` has it: keys come at once and are not echoed, and frames go to the alternate screen. It is
//! put back when the guard is dropped, and before a panic is told of.

use super::draw;
use super::view::View;
use crate::exit::Failure;
use crate::output;
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The other screen, without a cursor; lines that are too long are cut, not wrapped.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";
/// The rows of a terminal that does not say how many it has.
const ROWS: u16 = 24;

/// How the terminal was, while it is ours.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

fn before() -> MutexGuard<'static, Option<Termios>> {
    BEFORE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The terminal, until dropped.
#[derive(Debug)]
pub(super) struct Screen(());

impl Screen {
    /// Takes the terminal.
    pub(super) fn take() -> Result<Self, Failure> {
        let told = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            Self::give_back();
            told(panic);
        }));
        let screen = Self(());
        screen.take_again()?;
        Ok(screen)
    }

    /// Takes it after the program was stopped, when the shell has had it.
    pub(super) fn take_again(&self) -> Result<(), Failure> {
        let refused = |e| Failure::system(format!("the terminal cannot be used: {e}"));
        let tty = std::io::stdin();
        let mut modes = tcgetattr(&tty).map_err(refused)?;
        before().get_or_insert_with(|| modes.clone());
        modes.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
        modes.special_codes[SpecialCodeIndex::VMIN] = 1;
        modes.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(&tty, OptionalActions::Now, &modes).map_err(refused)?;
        write(ENTER)
    }

    /// Puts the terminal back; does nothing when that was done.
    pub(super) fn give_back() {
        if let Some(modes) = before().take() {
            // A terminal that is gone needs nothing.
            let _ = write(LEAVE);
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &modes);
        }
    }

    /// Draws over what is there.
    pub(super) fn show(&self, view: &View) -> Result<(), Failure> {
        let rows = tcgetwinsize(std::io::stdout()).map_or(0, |size| size.ws_row);
        let rows = usize::from(if rows == 0 { ROWS } else { rows });
        let columns = output::screen(std::io::stdout()).unwrap_or_default();
        let lines: Vec<String> = draw::frame(view, columns, rows);
        write(&format!("\x1b[H{}\x1b[K\x1b[J", lines.join("\x1b[K\r\n")))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        Self::give_back();
    }
}

fn write(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|e| Failure::system(format!("cannot write to the terminal: {e}")))
}
