//! Calls that a person has to agree to.

use super::*;

/// A person who says what the test has said, when the test says it.
struct Person {
    asked: mpsc::UnboundedSender<u64>,
    says: tokio::sync::Mutex<mpsc::UnboundedReceiver<Decision>>,
}

#[async_trait]
impl Approver for Person {
    async fn ask(&self, call: &ToolCall) -> Decision {
        self.asked.send(call.number).unwrap();
        self.says.lock().await.recv().await.unwrap()
    }
}

/// A tool that a person has to agree to.
struct Grave(Value);

#[async_trait]
impl Tool for Grave {
    fn name(&self) -> &str {
        "grave"
    }

    fn doc(&self) -> &str {
        ""
    }

    fn schema(&self) -> &Value {
        &self.0
    }

    fn needs_approval(&self) -> bool {
        true
    }

    async fn call(&self, _: ToolCall) -> Result<ToolOutput, ToolFailure> {
        Ok(json!("done").into())
    }
}

fn clock_of(far: &Far) -> Vec<&'static str> {
    let name = |down: &Down| match down {
        Down::Hold(_) => Some("hold"),
        Down::Resume => Some("resume"),
        Down::Answer { .. } => None,
    };
    far.came.lock().unwrap().iter().filter_map(name).collect()
}

#[tokio::test(start_paused = true)]
async fn a_person_is_asked_one_call_at_a_time_while_the_clock_stands_still() {
    let (asked, mut hear_asked) = mpsc::unbounded_channel();
    let (say, says) = mpsc::unbounded_channel();
    let person = Arc::new(Person { asked, says: tokio::sync::Mutex::new(says) });
    let grave: Arc<dyn Tool> = Arc::new(Grave(json!({})));
    let tools = Tools::new([grave]).unwrap().approver(person);
    at_desk(&tools, &NoEvents, async |at, far| {
        let clock = Arc::clone(at.desk.clock());
        assert!(!clock.is_held());
        let began = Instant::now();
        at.call(1, "grave", &json!({}));
        at.call(2, "grave", &json!({}));
        assert_eq!(hear_asked.recv().await, Some(1));
        far.until(|far| clock_of(far) == ["hold"]).await;
        tokio::time::advance(Duration::from_secs(300)).await;
        assert!(clock.is_held() && clock.held() >= Duration::from_secs(300));
        say.send(Decision::Deny("not today".into())).unwrap();
        let answer = far.answer(1).await;
        assert_eq!((kind(&answer), &answer["error"]["message"]), ("denied", &json!("not today")));
        assert_eq!(hear_asked.recv().await, Some(2));
        assert_eq!(clock_of(far), ["hold"], "one question after the other is one hold");
        say.send(Decision::Approve).unwrap();
        assert_eq!(far.answer(2).await["value"], "done");
        far.until(|far| clock_of(far) == ["hold", "resume"]).await;
        tokio::task::yield_now().await;
        assert!(!clock.is_held() && clock.held() <= began.elapsed());
        // A hold that was cut off may stand: it is taken back as often as it was sent.
        far.fails.store(1, SeqCst);
        at.call(3, "grave", &json!({}));
        assert_eq!(hear_asked.recv().await, Some(3));
        far.until(|far| clock_of(far)[2..] == ["hold", "hold"]).await;
        say.send(Decision::Always).unwrap();
        far.answer(3).await;
        far.until(|far| clock_of(far)[4..] == ["resume", "resume"]).await;
        at.call(4, "grave", &json!({}));
        assert_eq!(far.answer(4).await["value"], "done", "it was said for all of them");
    })
    .await;
    // Also for later cells with this set.
    at_desk(&tools.clone(), &NoEvents, async |at, far| {
        at.call(1, "grave", &json!({}));
        assert_eq!(far.answer(1).await["value"], "done");
        assert!(clock_of(far).is_empty());
    })
    .await;
}

#[tokio::test]
async fn without_anybody_to_ask_it_is_denied() {
    let grave: Arc<dyn Tool> = Arc::new(Grave(json!({})));
    at_desk(&Tools::new([grave]).unwrap(), &NoEvents, async |at, far| {
        at.call(1, "grave", &json!({}));
        let answer = far.answer(1).await;
        assert_eq!(kind(&answer), "denied");
        assert!(answer["error"]["message"].as_str().unwrap().contains("nobody to ask"), "{answer}");
    })
    .await;
}
