//! A connection that gathers what is written to it.
//!
//! The headers of a call and its body are written one after the other, and each write is a packet that wakes the server.
//! Here they wait until every other task that is ready on this runtime has had its turn, and go out together. Calls that
//! became ready at the same time go out together too.

use futures_util::future::BoxFuture;
use hyper_util::rt::TokioIo;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;

/// What is written without being asked to flush.
const FULL: usize = 64 * 1024;

/// Opens connections.
#[derive(Clone, Debug)]
pub(super) struct Dial;

impl Service<Uri> for Dial {
    type Response = TokioIo<Gathered>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        Box::pin(async move {
            let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
            let stream = TcpStream::connect((host, uri.port_u16().unwrap_or(2379))).await?;
            stream.set_nodelay(true)?;
            Ok(TokioIo::new(Gathered { stream, written: Vec::new(), waited: false }))
        })
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Gathered {
    stream: TcpStream,
    written: Vec<u8>,
    /// Whether the others that are ready have had their turn.
    waited: bool,
}

impl Gathered {
    fn send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut sent = 0;
        let outcome = loop {
            if sent == self.written.len() {
                break Poll::Ready(Ok(()));
            }
            match Pin::new(&mut self.stream).poll_write(cx, &self.written[sent..]) {
                Poll::Ready(Ok(0)) => break Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(length)) => sent += length,
                Poll::Ready(Err(error)) => break Poll::Ready(Err(error)),
                Poll::Pending => break Poll::Pending,
            }
        };
        self.written.drain(..sent);
        outcome
    }
}

impl AsyncRead for Gathered {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl AsyncWrite for Gathered {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.written.len() >= FULL {
            ready!(self.send(cx))?;
        }
        self.written.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.written.len() >= FULL {
            ready!(self.send(cx))?;
        }
        parts.iter().for_each(|part| self.written.extend_from_slice(part));
        Poll::Ready(Ok(parts.iter().map(|part| part.len()).sum()))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.written.is_empty() {
            if !std::mem::replace(&mut self.waited, true) {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            ready!(self.send(cx))?;
        }
        self.waited = false;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.send(cx))?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
