//! One connection of HTTP/1.1, driven by the request that uses it.

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use tokio::io::{AsyncRead, AsyncWrite};

/// Reads and writes; ends with the connection.
type Driver = Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>;

pub(super) struct Connection {
    sender: SendRequest<Full<Bytes>>,
    /// `None` once the connection has ended.
    driver: Option<Driver>,
    /// What broke it: known to the driver, and not always to the request that was cut off.
    cause: Option<hyper::Error>,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("ended", &self.driver.is_none()).finish_non_exhaustive()
    }
}

impl Connection {
    pub(super) async fn open(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> hyper::Result<Self> {
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        Ok(Self { sender, driver: Some(Box::pin(connection)), cause: None })
    }

    /// This connection, unless it has ended while no request used it.
    pub(super) fn if_open(mut self) -> Option<Self> {
        self.work(&mut Context::from_waker(Waker::noop()));
        (self.driver.is_some() && self.sender.is_ready()).then_some(self)
    }

    /// Sends a request; the head of the answer.
    pub(super) async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Full<Bytes>>>> {
        let answer = self.sender.try_send_request(request);
        self.drive(answer).await
    }

    /// What comes of a part of a request, such as its answer's head or a piece of the body. Nothing but the driver brings it
    /// further, so the part is polled right after the driver, and needs no waker of its own.
    pub(super) async fn drive<F: Future>(&mut self, part: F) -> F::Output {
        let mut part = pin!(part);
        poll_fn(|cx| {
            let mut quiet = Context::from_waker(Waker::noop());
            // It may be there already, or say that more is wanted.
            if let Poll::Ready(done) = part.as_mut().poll(&mut quiet) {
                return Poll::Ready(done);
            }
            self.work(cx);
            part.as_mut().poll(&mut quiet)
        })
        .await
    }

    /// Why a request failed. The connection has no use after that.
    pub(super) async fn cause(mut self, error: hyper::Error) -> hyper::Error {
        drop(self.sender);
        if let Some(driver) = self.driver.take() {
            self.cause = driver.await.err();
        }
        self.cause.unwrap_or(error)
    }

    fn work(&mut self, cx: &mut Context<'_>) {
        if let Some(driver) = &mut self.driver
            && let Poll::Ready(end) = driver.as_mut().poll(cx)
        {
            // What still waits for it is told when it is dropped.
            self.driver = None;
            self.cause = end.err();
        }
    }
}
