package train

import (
	"maps"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/epochs"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/report"
	rltrun "github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/rl/train"
)

// TestEqualsTrainer trains a client and, with the same data, rltrain's own trainer.
func TestEqualsTrainer(t *testing.T) {
	s := tiny(t)
	const steps = 5
	var samples []*rl.Sample
	actions := 0
	for i, ids := range texts {
		x := &rl.Sample{Prompt: i}
		for j, id := range ids {
			x.Tokens = append(x.Tokens, int32(id))
			if j > 1 {
				x.Rows, x.Actions = append(x.Rows, j-1), append(x.Actions, int32(id))
				actions++
			}
		}
		samples = append(samples, x)
	}
	c := s.client(7)
	var remote []float64
	for range steps {
		remote = append(remote, c.lesson(1/float64(actions)))
	}
	s.stop()

	p := must.Open(policy.NewCausalLM(policy.Config{Dir: s.model, R: 4, Alpha: alpha, Seed: 7,
		Targets: []string{policy.AllLinear}}))(t)
	source := must.Get(epochs.New(samples, len(samples), 0, 1))(t)
	var local []float64
	must.Get(train.Run(t.Context(), p, source, &algo.SFT{}, train.Config{Steps: steps, Optimisation: train.Optimisation{
		LearningRate: 1e-2, Schedule: "constant", MaxGradNorm: 0.5, AdamBeta1: 0.9, AdamBeta2: 0.95, AdamEpsilon: 1e-8,
	}}, rltrun.Hooks{Row: func(row report.Row) error {
		if loss, ok := row["loss"].(float64); ok {
			local = append(local, loss)
		}
		return nil
	}}))(t)
	expect.Require(t, len(local) == steps, "%d rows of %d steps", len(local), steps)
	for i := range steps {
		expect.True(t, math.Abs(local[i]-remote[i]) < 1e-5, "step %d: loss %g, rltrain's trainer has %g", i, remote[i], local[i])
	}
	expect.True(t, remote[steps-1] < 0.95*remote[0], "the loss did not fall: %v", remote)
}

// TestClientsDoNotDisturb lets two clients train at once with room for one: each ends where it ends alone, bit for bit, though
// its adapter, moments and gradient go to disk in between.
func TestClientsDoNotDisturb(t *testing.T) {
	alone := tiny(t)
	want := [][]float64{alone.client(1).lessons(4), alone.client(2).lessons(4)}
	alone.stop()
	s := start(t, filepath.Join(t.TempDir(), "model"), t.TempDir(), 1)
	clients := []*client{s.client(1), s.client(2)}
	got := make([][]float64, 2)
	var both sync.WaitGroup
	for i, c := range clients {
		both.Go(func() { got[i] = c.lessons(4) })
	}
	both.Wait()
	expect.Equal(t, want, got)
	expect.True(t, s.figures.evictions.Load() > 0, "no run was moved to disk")
}

// TestRestart stops a server between forward_backward and optim_step.
func TestRestart(t *testing.T) {
	whole := tiny(t)
	want := whole.client(1).lessons(4)
	whole.stop()

	model, dir := filepath.Join(t.TempDir(), "model"), t.TempDir()
	s := start(t, model, dir, 4)
	c := s.client(1)
	got := c.lessons(2)
	got = append(got, c.do("forward_backward", c.next(examples("cross_entropy", data(0.2))))["metrics"].(object)["loss:sum"].(float64))
	s.stop()
	s = start(t, model, dir, 4)
	c.service = s
	c.do("optim_step", c.next(object{"adam_params": object{"learning_rate": 1e-2, "eps": 1e-8, "grad_clip_norm": 0.5}}))
	got = append(got, c.lessons(1)...)
	expect.Equal(t, want, got)
	expect.True(t, !files.Exist(s.runs[c.id].dir, liveFolder), "a state that is out of date is still on disk")

	// Of a server that ends without saving, the checkpoints remain.
	c.do("save_weights", c.next(object{"path": "a"}))
	live := filepath.Join(s.runs[c.id].dir, liveFolder)
	s.stop()
	must.Do(t, os.RemoveAll(live))
	s = start(t, model, dir, 4)
	status, reply := s.ask("POST", "get_info", object{"model_id": c.id})
	expect.True(t, status == http.StatusNotFound, "status %d, %v", status, reply)
	session := s.call("create_session", object{})["session_id"]
	loaded := s.do("load_weights", object{"session_id": session, "model_seq_id": 0, "path": "tinker://" + c.id + "/weights/a", "optimizer": true})
	expect.Same(t, text(session)+":train:0", text(loaded["model_id"]), "id of the run")
}

// TestOrder sends requests in another order than that of their numbers, and twice.
func TestOrder(t *testing.T) {
	s := tiny(t)
	c := s.client(1)
	want := c.lessons(3)
	c = s.client(1)
	var promises []object
	for _, at := range []int{2, 1, 2, 4, 3, 1, 6, 5} {
		c.seq = at - 1
		if at%2 == 1 {
			promises = append(promises, c.call("forward_backward", c.next(examples("cross_entropy", data(0.2)))))
		} else {
			promises = append(promises, c.call("optim_step", c.next(object{"adam_params": object{"learning_rate": 1e-2, "eps": 1e-8, "grad_clip_norm": 0.5}})))
		}
	}
	var got []float64
	for _, i := range []int{1, 4, 7} {
		got = append(got, s.result(promises[i])["metrics"].(object)["loss:sum"].(float64))
	}
	expect.Equal(t, want, got)
	expect.Same(t, text(promises[0]), text(promises[2]), "promise of a repeated request")
}

// TestSampling compares completions with the run's own forward pass, for more snapshots than can be loaded at once.
func TestSampling(t *testing.T) {
	s := tiny(t)
	c := s.client(1)
	var sessions []string
	var first [][][]any
	for i := range 3 {
		c.lessons(2)
		session := c.sampler(i)
		sessions = append(sessions, session)
		tokens, logs := c.sequences(object{"sampling_session_id": session, "seq_id": 0, "num_samples": 3})
		first = append(first, tokens)
		for j, ids := range tokens {
			var all []int
			for _, id := range append([]any{5.0, 6.0}, ids...) {
				all = append(all, int(id.(float64)))
			}
			n := len(all) - 1
			out := c.do("forward", c.next(object{"forward_input": object{"loss_fn": "cross_entropy", "data": []any{datum(all[:n], all[1:], object{})}}}))
			forward := out["loss_fn_outputs"].([]any)[0].(object)["logprobs"].(object)["data"].([]any)[1:]
			for k := range ids {
				difference := forward[k].(float64) - logs[j][k].(float64)
				expect.True(t, math.Abs(difference) < 1e-4, "log π of token %d: sampled %v, forward %v", k, logs[j][k], forward[k])
			}
		}
	}
	expect.True(t, text(first[0]) != text(first[2]), "training changed no completion")
	for i, session := range sessions { // again, in another request
		tokens, _ := c.sequences(object{"sampling_session_id": session, "seq_id": 1, "num_samples": 3})
		expect.Same(t, text(first[i]), text(tokens), "completions of snapshot %d", i)
	}
	base, _ := c.sequences(object{"base_model": "tiny"})
	expect.True(t, len(base) == 1, "the base model has %d completions", len(base))

	prompt := object{"chunks": []any{object{"tokens": texts[0]}}}
	out := s.do("asample", object{"sampling_session_id": sessions[2], "seq_id": 9, "prompt": prompt, "prompt_logprobs": true, "topk_prompt_logprobs": 2, "sampling_params": object{"max_tokens": 1}})
	logs, top := out["prompt_logprobs"].([]any), out["topk_prompt_logprobs"].([]any)
	forward := c.do("forward", c.next(object{"forward_input": object{"loss_fn": "cross_entropy", "data": data(1)[:1]}}))["loss_fn_outputs"].([]any)[0].(object)["logprobs"].(object)["data"].([]any)
	expect.True(t, logs[0] == nil && len(top[1].([]any)) == 2, "prompt_logprobs %v, topk_prompt_logprobs %v", logs, top)
	for i, l := range logs[1:] {
		expect.True(t, math.Abs(l.(float64)-forward[i].(float64)) < 1e-5, "log π of prompt token %d: %v, forward %v", i+1, l, forward[i])
	}
	// Weights that were replaced stay until the last request that samples from them.
	var with *snapshot
	dir := s.samplers[sessions[2]].dir
	borrow := func() (err error) { with, err = s.borrow(dir); return err }
	must.Do(t, s.server.Ask(t.Context(), borrow))
	must.Do(t, s.server.Ask(t.Context(), borrow))
	s.forget(dir)
	s.giveBack(with)
	c.sequences(object{"base_model": "tiny"})
	must.Do(t, s.server.Ask(t.Context(), func() error {
		_, err := s.server.Policy(with.adapter).TopLogProbs(t.Context(), []int32{5, 6}, 1, 0, 1)
		return err
	}))
	s.giveBack(with)
	for i := range mostSnapshots {
		c.sampler(10 + i)
	}
	status, reply := s.ask("POST", "asample", object{"sampling_session_id": sessions[0], "prompt": prompt, "sampling_params": object{"max_tokens": 1}})
	expect.True(t, status == http.StatusNotFound, "status %d, %v", status, reply)
}

// TestUnwritten: a snapshot whose files cannot be written serves from memory, and names the cause once it had to leave it.
func TestUnwritten(t *testing.T) {
	s := tiny(t)
	c := s.client(1)
	blocked := filepath.Join(s.runs[c.id].dir, unnamedFolder)
	must.Do(t, os.WriteFile(blocked, nil, 0o644)) // where a folder should be
	first := c.sampler(0)
	want, _ := c.sequences(object{"sampling_session_id": first})
	for i := range s.config.Adapters {
		c.sampler(1 + i)
	}
	s.workers.Wait()
	ask := func() (int, object) {
		body := sampleOf(object{"max_tokens": 6, "seed": 3})
		body["sampling_session_id"], body["prompt"] = first, object{"chunks": []any{object{"tokens": []int{5, 6}}}}
		return s.ask("POST", "asample", body)
	}
	status, reply := ask()
	expect.Same(t, http.StatusNotFound, status, "status")
	expect.Contains(t, text(reply["error"]), "could not write them", "not a directory")
	// Saved again, they are there, however often.
	must.Do(t, os.Remove(blocked))
	for range mostSnapshots + 1 {
		first = c.sampler(0)
	}
	for i := range s.config.Adapters {
		c.sampler(10 + i)
	}
	s.workers.Wait()
	got, _ := c.sequences(object{"sampling_session_id": first})
	expect.Equal(t, want, got)
}

// TestCheckpoints saves, lists, loads, expires and removes checkpoints.
func TestCheckpoints(t *testing.T) {
	s := tiny(t)
	c := s.client(1)
	c.lessons(2)
	path := c.do("save_weights", c.next(object{"path": "a"}))["path"].(string)
	c.do("save_weights_for_sampler", c.next(object{"path": "b"}))
	after := c.lessons(2)
	expect.Contains(t, text(s.result(s.call("save_weights", c.next(object{"path": "a"})))["error"]), "exists")

	c.do("load_weights", c.next(object{"path": path, "optimizer": true}))
	expect.Equal(t, after, c.lessons(2))
	c.do("load_weights", c.next(object{"path": path}))
	fresh := c.lessons(2)
	expect.True(t, fresh[0] == after[0] && fresh[1] != after[1], "losses %v without the moments, %v with them", fresh, after)
	c.do("save_weights", c.next(object{"path": "a", "overwrite": true}))
	expect.Same(t, "user", text(s.result(s.call("load_weights", c.next(object{"path": "tinker://" + c.id + "/sampler_weights/b", "optimizer": true})))["category"]), "category")

	_, list := s.ask("GET", "training_runs/"+c.id+"/checkpoints", nil)
	var found []string
	for _, x := range list["checkpoints"].([]any) {
		found = append(found, x.(object)["tinker_path"].(string))
	}
	slices.Sort(found)
	expect.Equal(t, []string{"tinker://" + c.id + "/sampler_weights/b", path}, found)
	expect.Same(t, 4.0, s.call("weights_info", object{"tinker_path": path})["lora_rank"].(float64), "rank")
	_, runs := s.ask("GET", "training_runs?limit=1", nil)
	expect.Same(t, path, text(runs["training_runs"].([]any)[0].(object)["last_checkpoint"].(object)["tinker_path"]), "last checkpoint")

	b := "training_runs/" + c.id + "/checkpoints/sampler_weights/b"
	status, _ := s.ask("GET", b+"/archive", nil) // the client follows the redirect
	expect.Same(t, http.StatusOK, status, "status of the archive")
	_, urls := s.ask("GET", b+"/external_weights_urls", nil)
	expect.Same(t, 2, len(urls["urls"].(object)), "files")
	link := urls["urls"].(object)["adapter_config.json"].(string)
	for change, want := range map[string]int{"": 200, "until=1": 401, "files/adapter_config.json?": 401} {
		with := link
		if name, _, ok := strings.Cut(change, "="); ok {
			with = regexp.MustCompile(name+"=[0-9]+").ReplaceAllString(link, name+"=99999999999")
		} else if change != "" {
			with = strings.Replace(link, change, "files/adapter_model.safetensors?", 1)
		}
		answer := must.Get(http.Get(with))(t)
		must.Do(t, answer.Body.Close())
		expect.Same(t, want, answer.StatusCode, "status of a link without the key after the change %q", change)
	}
	status, _ = s.ask("GET", b+"/files/adapter_config.json", nil)
	expect.Same(t, http.StatusOK, status, "status of a file")
	status, _ = s.ask("GET", b+"/files/..%2F..%2Frun.json", nil)
	expect.Same(t, http.StatusNotFound, status, "status of a file elsewhere")
	tokens, _ := c.sequences(object{"model_path": "tinker://" + c.id + "/sampler_weights/b"})
	expect.Same(t, 1, len(tokens), "completions")

	status, _ = s.ask("PUT", b+"/ttl", object{"ttl_seconds": 3600})
	expect.Same(t, http.StatusOK, status, "status of a new time")
	checkpoint := must.Get(s.at("tinker://" + c.id + "/sampler_weights/b"))(t)
	*checkpoint.Expires = checkpoint.Time
	must.Do(t, checkpoint.describe(checkpoint.dir()))
	expect.Failure(s.at("tinker://"+c.id+"/sampler_weights/b"))(t, "expired")
	status, _ = s.ask("DELETE", "training_runs/"+c.id+"/checkpoints/weights/a", nil)
	expect.Same(t, http.StatusOK, status, "status of a removal")
	expect.Failure(s.at(path))(t, "not found")
}

// TestManyTargets: an example with more targets than a pass takes goes through several, with the result of examples with fewer.
func TestManyTargets(t *testing.T) {
	s := tiny(t)
	c := s.client(1)
	c.lessons(2)
	const tokens, width = 3, 3000
	ids, targets := []int{5, 6, 7}, make([]int, tokens*width)
	for i := range targets {
		targets[i] = i * i % s.base.VocabSize()
	}
	expect.True(t, len(targets) > 2*s.part(), "%d targets are %d passes at most", len(targets), len(targets)/s.part())
	pass := func(some []int, shape ...int) (logs []any, loss float64) {
		one := datum(ids, some, object{"weights": object{"data": slices.Repeat([]float64{0.01}, len(some)), "shape": shape}})
		one["loss_fn_inputs"].(object)["target_tokens"].(object)["shape"] = shape
		out := c.do("forward_backward", c.next(examples("cross_entropy", []any{one})))
		return out["loss_fn_outputs"].([]any)[0].(object)["logprobs"].(object)["data"].([]any), out["metrics"].(object)["loss:sum"].(float64)
	}
	step := func() float64 {
		return c.do("optim_step", c.next(object{"adam_params": object{"learning_rate": 0}}))["metrics"].(object)["grad_norm"].(float64)
	}
	before := s.figures.tokens.Load()
	whole, loss := pass(targets, tokens, width)
	expect.Same(t, 3*tokens, s.figures.tokens.Load()-before, "tokens of the passes")
	norm := step()
	sum := 0.0
	for k := 0; k < width; k += 1000 { // columns
		var some []int
		for at := range tokens {
			some = append(some, targets[at*width+k:at*width+k+1000]...)
		}
		logs, l := pass(some, tokens, 1000)
		sum += l
		for at := range tokens {
			expect.Equal(t, logs[at*1000:at*1000+1000], whole[at*width+k:at*width+k+1000], cmpopts.EquateApprox(0, 1e-5))
		}
	}
	expect.True(t, math.Abs(loss-sum) < 1e-4*math.Abs(sum), "loss %g, in parts %g", loss, sum)
	expect.True(t, math.Abs(step()/norm-1) < 1e-4, "norm of the gradient %g", norm)
}

// TestRefusals: what is wrong with a request is said at once, or with the result if later requests count on its number.
func TestRefusals(t *testing.T) {
	s := tiny(t)
	c := s.client(1)
	session := object{"session_id": c.session, "model_seq_id": 1, "base_model": "tiny"}
	with := func(o object, name string, value any) object {
		o = maps.Clone(o)
		o[name] = value
		return o
	}
	for _, x := range []struct {
		path   string
		body   any
		status int
	}{
		{"create_model", session, 400}, {"create_model", with(session, "lora_config", object{"rank": 0}), 400},
		{"create_model", with(session, "lora_config", object{"rank": 1 << 20}), 400}, {"create_model", with(session, "base_model", "x"), 400},
		{"create_model", with(session, "lora_config", object{"rank": 4, "train_mlp": false, "train_attn": false}), 400},
		{"create_model", with(with(session, "lora_config", object{"rank": 4}), "session_id", "x"), 404},
		{"create_model", with(with(session, "lora_config", object{"rank": 4}), "optimizer_config", object{"type": "dimuon"}), 400},
		{"forward_backward", []byte("{"), 422}, {"forward_backward", []byte("[]"), 422}, {"forward_backward", object{}, 422},
		{"forward_backward", with(examples("ppo", []any{}), "model_id", "x"), 404}, {"forward_backward", object{"model_id": c.id, "seq_id": 1.5}, 422},
		{"optim_step", object{"model_id": c.id, "seq_id": 1.5}, 422}, {"optim_step", object{"model_id": c.id, "seq_id": -1}, 400}, {"optim_step", object{"model_id": c.id, "seq_id": 1 << 30}, 400},
		{"retrieve_future", object{"request_id": "x"}, 410}, {"session_heartbeat", object{"session_id": "x"}, 410},
		{"load_weights", object{"path": "x"}, 400}, {"load_weights", object{"session_id": c.session, "path": "file:///etc/passwd"}, 400},
		{"load_weights", object{"session_id": c.session, "path": "tinker://" + c.id + "/weights/.."}, 404},
		{"weights_info", object{"tinker_path": "tinker://../weights/a"}, 404},
		{"create_sampling_session", object{"session_id": c.session, "base_model": "x"}, 400},
		{"asample", object{"base_model": "tiny"}, 400}, {"asample", sampleOf(object{"max_tokens": 1 << 30}), 400}, {"asample", sampleOf(object{"temperature": -1}), 400},
		{"asample", sampleOf(object{"stop": []any{}}), 400}, {"asample", sampleOf(object{"stop": object{}}), 400}, {"asample", sampleOf(object{"seed": 1.5}), 400},
		{"asample", with(sampleOf(object{"max_tokens": 1}), "num_samples", 1000), 400}, {"asample", with(sampleOf(object{"max_tokens": 1}), "topk_sample_logprobs", 1), 400},
		{"asample", with(sampleOf(object{"max_tokens": 1}), "sampling_session_id", "x"), 404},
	} {
		status, reply := s.ask("POST", x.path, x.body)
		expect.True(t, status == x.status, "%s %v: status %d, want %d: %v", x.path, x.body, status, x.status, reply)
	}
	for _, x := range []struct {
		path string
		body object
		want string
	}{
		{"forward_backward", examples("cross_entropy", []any{}), "empty"},
		{"forward_backward", examples("cross_entropy", []any{datum([]int{1, 1 << 20}, []int{1, 1}, object{})}), "not a token id"},
		{"forward_backward", examples("cross_entropy", []any{datum([]int{1}, []int{1, 1}, object{})}), "one row per token"},
		{"forward_backward", examples("cross_entropy", []any{datum(make([]int, 5000), make([]int, 5000), object{})}), "positions"},
		{"forward_backward", examples("gspo", data(1)), "gspo"},
		{"optim_step", object{}, "no gradient"}, {"optim_step", object{"adam_params": object{"beta1": 1}}, "beta1"}, {"optim_step", object{"optimizer_params": object{"type": "x"}}, "adam_params"},
		{"save_weights", object{"path": "../a"}, "not a name"}, {"save_weights", object{"path": "a", "ttl_seconds": -1}, "ttl_seconds"},
		{"load_weights", object{"path": "tinker://x/weights/a"}, "not found"},
		{"forward_backward", object{"forward_backward_input": object{"data": []any{object{"model_input": object{"chunks": []any{object{"type": "image"}}}}}}}, "only encoded_text"},
		{"optim_step", object{"adam_params": object{"beta1": "x"}}, "beta1"},
	} {
		reply := s.result(s.call(x.path, c.next(x.body)))
		expect.Same(t, "user", text(reply["category"]), "category of %s", x.path)
		expect.Contains(t, text(reply["error"]), x.want)
	}
	c.lesson(0.2) // and the run goes on
}

// TestOverflow: a loss that is not finite discards the gradient, which could lack a part.
func TestOverflow(t *testing.T) {
	s := tiny(t)
	c := s.client(1)
	one := datum([]int{5}, []int{6}, object{"logprobs": object{"data": []float64{-1e9}}, "advantages": object{"data": []float64{1}}})
	reply := s.result(s.call("forward_backward", c.next(examples("importance_sampling", []any{one}))))
	expect.Contains(t, text(reply["error"]), "loss is -Inf", "discarded")
	expect.Contains(t, text(s.result(s.call("optim_step", c.next(object{})))["error"]), "no gradient")
}

func sampleOf(params object) object {
	return object{"base_model": "tiny", "prompt": object{"chunks": []any{object{"tokens": []int{5}}}}, "sampling_params": params}
}
