package train

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/rltrain/rltrain/cmd/rltrain/serve"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/torchtest"
)

func TestMain(m *testing.M) { torchtest.Main(m) }

// service is a server under test, of a small model called "tiny".
type service struct {
	*Trainer
	t     testing.TB
	url   string
	model string // folder
	stop  func() // and wait
}

// start makes a server whose runs are in dir.
func start(t testing.TB, model, dir string, resident int) *service {
	t.Helper()
	torchtest.NoLeaks(t)
	must.Do(t, policy.TinyChatModel(model, 1, 32, 5))
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	ctx, cancel := context.WithCancel(context.Background())
	s := &service{t: t, url: "http://" + listener.Addr().String() + "/api/v1/", model: model}
	made, ended := make(chan error, 1), make(chan error, 1)
	thread := torch.NewThread()
	go func() {
		ended <- thread.Do(context.Background(), func(context.Context) error {
			p, err := policy.NewCausalLM(policy.Config{Dir: model, BaseModel: "base"})
			if err != nil {
				made <- err
				return err
			}
			defer p.Close()
			server, err := serve.New(p, serve.Config{Name: "tiny", Key: "tml-key", Slots: 8, Queue: 64, Grace: time.Minute, Logf: t.Logf})
			if err == nil {
				s.Trainer, err = New(ctx, server, p, Config{Name: "tiny", Dir: dir, Resident: resident, Adapters: 2, Logf: t.Logf})
			}
			if made <- err; err != nil {
				return err
			}
			defer s.Trainer.Close()
			return server.Serve(ctx, listener)
		})
	}()
	must.Do(t, <-made)
	stopped := false
	s.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		<-ended
		thread.Close()
		http.DefaultClient.CloseIdleConnections()
	}
	t.Cleanup(s.stop)
	return s
}

func tiny(t testing.TB) *service {
	t.Helper()
	return start(t, filepath.Join(t.TempDir(), "model"), t.TempDir(), 4)
}

type object = map[string]any

// ask sends a request and returns the status and the decoded response.
func (s *service) ask(method, path string, body any) (int, object) {
	s.t.Helper()
	data, ok := body.([]byte)
	if !ok {
		data = must.Get(json.Marshal(body))(s.t)
	}
	r := must.Get(http.NewRequest(method, s.url+path, bytes.NewReader(data)))(s.t)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-API-Key", "tml-key")
	answer := must.Get(http.DefaultClient.Do(r))(s.t)
	defer answer.Body.Close()
	text := must.Get(io.ReadAll(answer.Body))(s.t)
	var reply object
	_ = json.Unmarshal(text, &reply) // an archive is no JSON
	return answer.StatusCode, reply
}

// call posts a request that must succeed.
func (s *service) call(path string, body any) object {
	s.t.Helper()
	status, reply := s.ask("POST", path, body)
	expect.Require(s.t, status == http.StatusOK, "%s: status %d, %v", path, status, reply)
	return reply
}

// result waits for the result of a request.
func (s *service) result(promise object) object {
	s.t.Helper()
	return s.call("retrieve_future", object{"request_id": promise["request_id"]})
}

// do posts a request and waits for its result, which must be no error.
func (s *service) do(path string, body any) object {
	s.t.Helper()
	reply := s.result(s.call(path, body))
	expect.Require(s.t, reply["error"] == nil, "%s: %v", path, reply["error"])
	return reply
}

// client is a session with a run.
type client struct {
	*service
	session, id string
	seq         int
}

func (s *service) client(seed int) *client {
	s.t.Helper()
	c := &client{service: s, session: s.call("create_session", object{})["session_id"].(string)}
	c.id = s.do("create_model", object{"session_id": c.session, "model_seq_id": 0, "base_model": "tiny", "lora_config": object{"rank": 4, "seed": seed}})["model_id"].(string)
	return c
}

// next fills in what all requests for a run have.
func (c *client) next(body object) object {
	c.seq++
	body["model_id"], body["seq_id"] = c.id, c.seq
	return body
}

var texts = [][]int{{5, 6, 7, 8}, {9, 10, 11}, {5, 6, 12, 13, 14}}

// data are examples that predict the next tokens of texts, with weights.
func data(weight float64) (all []object) {
	for _, ids := range texts {
		n := len(ids) - 1
		weights := make([]float64, n)
		for i := 1; i < n; i++ { // not the first
			weights[i] = weight
		}
		all = append(all, datum(ids[:n], ids[1:], object{"weights": object{"data": weights}}))
	}
	return all
}

func datum(tokens, targets []int, inputs object) object {
	inputs["target_tokens"] = object{"data": targets, "dtype": "int64"}
	return object{"model_input": object{"chunks": []any{object{"tokens": tokens}}}, "loss_fn_inputs": inputs}
}

func examples(loss string, data any) object {
	return object{"forward_backward_input": object{"data": data, "loss_fn": loss}}
}

// lesson is a step of SFT. It returns the loss.
func (c *client) lesson(weight float64) float64 {
	c.t.Helper()
	out := c.do("forward_backward", c.next(examples("cross_entropy", data(weight))))
	c.do("optim_step", c.next(object{"adam_params": object{"learning_rate": 1e-2, "eps": 1e-8, "grad_clip_norm": 0.5}}))
	return out["metrics"].(object)["loss:sum"].(float64)
}

// lessons are the losses of n steps.
func (c *client) lessons(n int) []float64 {
	c.t.Helper()
	var all []float64
	for range n {
		all = append(all, c.lesson(0.2))
	}
	return all
}

// sequences are the completions of a request.
func (c *client) sequences(body object) (tokens [][]any, logs [][]any) {
	c.t.Helper()
	body["prompt"] = object{"chunks": []any{object{"tokens": []int{5, 6}}}}
	if body["sampling_params"] == nil {
		body["sampling_params"] = object{"max_tokens": 6, "seed": 3}
	}
	for _, x := range c.do("asample", body)["sequences"].([]any) {
		tokens, logs = append(tokens, x.(object)["tokens"].([]any)), append(logs, x.(object)["logprobs"].([]any))
	}
	return tokens, logs
}

// sampler publishes the weights of the run without a name.
func (c *client) sampler(n int) string {
	c.t.Helper()
	return c.do("save_weights_for_sampler", c.next(object{"sampling_session_seq_id": n}))["sampling_session_id"].(string)
}

func text(x any) string { return fmt.Sprint(x) }
