package tinker

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"slices"
	"sync"

	"github.com/rltrain/rltrain/internal/tinker"
)

// Sizes of a request, as in Tinker's client.
const (
	mostExamples = 1024
	mostTokens   = 1 << 19
)

// model is an adapter on the service, with its optimizer.
type model struct {
	service *service
	id      string
	// repeats says that the service recognises a repeated request by its number.
	repeats bool
	// averages says that the service divides the gradient of each example by the sum of its weights, and the sum of all by the
	// number of examples. Others add up.
	averages bool

	lock   sync.Mutex
	number int // of the last request
	saves  int // of weights, for their names
}

// example is a sequence with a target for each of its tokens.
type example struct {
	tokens, targets []int32
	mask            []float32            // 1 for targets that are actions, 0 for others; nil = all
	inputs          map[string][]float32 // of the loss, one number per target
}

// promise is what the service returns for a request that it has taken.
type promise struct {
	ID string `json:"request_id"`
}

// adapter describes a new model.
type adapter struct {
	Rank      int    `json:"rank"`
	Seed      uint64 `json:"seed"`
	MLP       bool   `json:"train_mlp"`
	Attention bool   `json:"train_attn"`
	Output    bool   `json:"train_unembed"`
}

// create makes the number-th model of the session.
func (s *service) create(ctx context.Context, base string, a adapter, number int) (*model, error) {
	var p promise
	body := map[string]any{"type": "create_model", "session_id": s.session, "model_seq_id": number, "base_model": base, "lora_config": a}
	if err := s.post(ctx, "create_model", body, &p, true); err != nil {
		return nil, err
	}
	var made struct {
		ID string `json:"model_id"`
	}
	if err := s.result(ctx, p.ID, &made); err != nil {
		return nil, err
	}
	return &model{service: s, id: made.ID}, nil
}

// ask posts a request for the model and returns the id of its result. Requests run in the order of their numbers.
func (m *model) ask(ctx context.Context, path string, body map[string]any, repeat bool) (string, error) {
	return m.next(ctx, path, func(number int) any {
		body["type"], body["model_id"], body["seq_id"] = path, m.id, number
		return body
	}, repeat)
}

// next posts the request that has the next number.
func (m *model) next(ctx context.Context, path string, body func(number int) any, repeat bool) (string, error) {
	m.lock.Lock() // so that they also arrive in order
	defer m.lock.Unlock()
	m.number++
	return m.post(ctx, path, body(m.number), repeat)
}

// post posts a request with a number.
func (m *model) post(ctx context.Context, path string, body any, repeat bool) (string, error) {
	var p promise
	err := m.service.post(ctx, path, body, &p, repeat || m.repeats)
	return p.ID, err
}

// do posts a request that may run twice and waits for its result.
func (m *model) do(ctx context.Context, path string, body map[string]any, into any) error {
	id, err := m.ask(ctx, path, body, true)
	if err != nil {
		return err
	}
	return m.service.result(ctx, id, into)
}

// datum is an example for the service, with its mask if the service knows masks.
func (e example) datum(masks bool) tinker.Datum {
	d := tinker.Datum{Tokens: e.tokens, Inputs: map[string]tinker.Tensor{"target_tokens": tinker.Vector(e.targets)}}
	for name, values := range e.inputs {
		d.Inputs[name] = tinker.Vector(values)
	}
	if masks && e.mask != nil {
		d.Inputs["mask"] = tinker.Vector(e.mask)
	}
	return d
}

// requests divides examples into requests.
func requests(examples []example) (parts [][]example) {
	tokens := 0
	for i, e := range examples {
		if n := len(e.tokens); i == 0 || tokens+n > mostTokens || len(parts[len(parts)-1]) == mostExamples {
			parts, tokens = append(parts, nil), 0
		}
		tokens += len(e.tokens)
		parts[len(parts)-1] = append(parts[len(parts)-1], e)
	}
	return parts
}

// order is a request for a pass of examples.
func (m *model) order(loss string, examples []example, forward bool) *tinker.Examples {
	o := &tinker.Examples{ModelID: m.id, Loss: loss, ForwardOnly: forward}
	for _, e := range examples {
		o.Data = append(o.Data, e.datum(m.service.masks))
	}
	return o
}

// run posts the request for a pass and returns the id of its result.
func (m *model) run(ctx context.Context, o *tinker.Examples) (string, error) {
	return m.next(ctx, m.service.path(o), func(number int) any { o.Seq = &number; return o }, o.ForwardOnly)
}

// submit posts examples for a forward pass, or for one and its gradient, with a loss and returns the ids of the results.
func (m *model) submit(ctx context.Context, loss string, examples []example, forward bool) (ids []string, err error) {
	for _, part := range requests(examples) {
		o := m.order(loss, part, forward)
		id, err := m.run(ctx, o)
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// path is where examples go.
func (s *service) path(o *tinker.Examples) string {
	if o.ForwardOnly && !s.binary {
		return "forward"
	}
	return "forward_backward"
}

// forward returns log π of the targets of examples.
func (m *model) forward(ctx context.Context, examples []example) (all [][]float32, err error) {
	ids, err := m.submit(ctx, "cross_entropy", examples, true)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		var r tinker.ForwardResult
		if err := m.service.result(ctx, id, &r); err != nil {
			return nil, err
		}
		all = append(all, r.LogProbs...)
	}
	for i, e := range examples {
		if len(all) != len(examples) || len(all[i]) != len(e.targets) {
			return nil, fmt.Errorf("%s: the log-probabilities of %d examples do not fit the %d of the request", m.service.url, len(all), len(examples))
		}
	}
	return all, nil
}

// examine finds out whether the service recognises repeated requests, and whether it says that it adds up losses, with a forward
// pass of an example that changes nothing.
func (m *model) examine(ctx context.Context, e example) (sums bool, err error) {
	o := m.order("cross_entropy", []example{e}, true)
	first, err := m.run(ctx, o)
	if err != nil {
		return false, err
	}
	second, err := m.post(ctx, m.service.path(o), o, true)
	if err != nil {
		return false, err
	}
	m.repeats = first == second
	for _, id := range slices.Compact([]string{first, second}) {
		var r tinker.ForwardResult
		if err := m.service.result(ctx, id, &r); err != nil {
			return false, err
		}
		_, sums = r.Metrics["loss:sum"]
	}
	return sums, nil
}

// measureSums finds out whether the service averages: it compares the norms of the gradients of an example, and of two copies of it
// with twice the weights, of a fresh model that is not moved.
func (m *model) measureSums(ctx context.Context, e example) error {
	var norms [2]float64
	for i := range norms {
		e.inputs = map[string][]float32{"weights": slices.Repeat([]float32{float32(i + 1)}, len(e.targets))}
		adam := map[string]any{"learning_rate": 0, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0, "grad_clip_norm": 0}
		var err error
		if norms[i], err = m.step(ctx, "cross_entropy", slices.Repeat([]example{e}, i+1), adam); err != nil {
			return err
		}
	}
	switch ratio := norms[1] / norms[0]; {
	case math.Abs(ratio-4) < 0.1:
		m.averages = false
	case math.Abs(ratio-1) < 0.1:
		m.averages = true
	default:
		return fmt.Errorf("%s: the service neither adds nor averages gradients: that of an example has norm %g, that of twice two of them %g", m.service.url, norms[0], norms[1])
	}
	return nil
}

// weigh gives examples the inputs of a loss whose gradient is Σ slope·∇log π, where now are log π as they are.
func (m *model) weigh(examples []example, slopes, now [][]float32) (loss string) {
	for i := range examples {
		e := &examples[i]
		weights := make([]float32, len(slopes[i]))
		for j, s := range slopes[i] {
			weights[j] = -s
		}
		if !m.averages {
			e.inputs, loss = map[string][]float32{"weights": weights}, "cross_entropy"
			continue
		}
		// Each weight is 1, for a known sum. The ratio of importance sampling is 1 too.
		for j := range weights {
			weights[j] *= float32(len(weights) * len(examples))
		}
		e.inputs, loss = map[string][]float32{"advantages": weights, "logprobs": now[i]}, "importance_sampling"
	}
	return loss
}

// save keeps the weights, with the optimizer's state, on the service.
func (m *model) save(ctx context.Context) (path string, err error) {
	return m.saved(ctx, "save_weights", map[string]any{})
}

func (m *model) saved(ctx context.Context, how string, body map[string]any) (path string, err error) {
	m.saves++
	body["path"] = fmt.Sprintf("rltrain-%d", m.saves)
	var made struct {
		Path string `json:"path"`
	}
	err = m.do(ctx, how, body, &made)
	return made.Path, err
}

// load takes over weights, and with optimizer its state.
func (m *model) load(ctx context.Context, path string, optimizer bool) error {
	return m.do(ctx, "load_weights", map[string]any{"path": path, "optimizer": optimizer}, &struct{}{})
}

// unload has the service free the memory of the model if it responds at once.
func (m *model) unload() {
	ctx, stop := context.WithTimeout(context.Background(), beat)
	defer stop()
	body := map[string]any{"type": "unload_model", "model_id": m.id, "seq_id": m.number + 1}
	_ = m.service.send(ctx, http.MethodPost, "unload_model", body, nil) // it ends with the session anyway
}
