//! A call to the store that does not end half-way when the client that asked for it hangs up.

use lockkeeper::{Error, Result};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::runtime::Handle;

/// Runs in the task of its request, and goes on in a task of its own only when that request is dropped: a task for each
/// call would wake another thread each time.
pub(crate) struct Carried<T: Send + 'static>(Option<Pin<Box<dyn Future<Output = T> + Send>>>);

impl<T: Send + 'static> Carried<T> {
    pub(crate) fn new(call: impl Future<Output = T> + Send + 'static) -> Self {
        Self(Some(Box::pin(call)))
    }
}

impl<T: Send + 'static> Future for Carried<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        let did_not_end = || Poll::Ready(Err(Error::unavailable("the call to the store did not end")));
        let Some(mut call) = self.0.take() else { return did_not_end() };
        // A panic is the call's own, as in a task: the connection has other requests.
        match catch_unwind(AssertUnwindSafe(|| call.as_mut().poll(cx))) {
            Ok(Poll::Ready(answer)) => Poll::Ready(Ok(answer)),
            Ok(Poll::Pending) => {
                self.0 = Some(call);
                Poll::Pending
            }
            Err(_) => did_not_end(),
        }
    }
}

impl<T: Send + 'static> Drop for Carried<T> {
    fn drop(&mut self) {
        if let (Some(call), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(call);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper::ErrorKind;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn a_call_whose_request_is_dropped_goes_on() {
        let ((go, goes), (done, ended)) = (oneshot::channel::<()>(), oneshot::channel::<()>());
        let mut call = Carried::new(async move {
            goes.await.expect("told");
            done.send(()).expect("awaited");
        });
        assert!(std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut call).poll(cx).is_pending())).await);
        drop(call);
        go.send(()).expect("it still waits for this");
        ended.await.expect("it went on to its end");
    }

    #[tokio::test]
    async fn a_call_that_was_never_begun_is_carried_out_too() {
        let (done, ended) = oneshot::channel::<()>();
        drop(Carried::new(async move { done.send(()).expect("awaited") }));
        ended.await.expect("it was carried out");
    }

    #[tokio::test]
    async fn a_call_that_panics_is_an_error_of_that_call() {
        let answer = Carried::new(async { panic!("on purpose") }).await;
        let error = answer.map(|never: ()| never).expect_err("it did not end");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
    }
}
