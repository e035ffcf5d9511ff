package train

import (
	"math"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// logs are the log-probabilities of a reply.
func logs(reply object) (all [][]any) {
	for _, x := range reply["loss_fn_outputs"].([]any) {
		all = append(all, x.(object)["logprobs"].(object)["data"].([]any))
	}
	return all
}

func forward(data any) object {
	return object{"forward_input": object{"data": data, "loss_fn": "cross_entropy"}}
}

// TestForwardBeforeGradient: a forward pass before that of the gradient is the only one, and changes nothing, whatever comes in
// between.
func TestForwardBeforeGradient(t *testing.T) {
	s := tiny(t)
	want := s.client(1).lessons(5)
	c, other := s.client(1), s.client(2)
	other.lessons(1)
	kept := func() (is bool) {
		must.Do(t, s.server.Ask(t.Context(), func() error { is = s.kept != nil && s.kept.run.ID == c.id; return nil }))
		return is
	}
	got := c.lessons(1)
	for _, between := range []func(){
		func() { expect.True(t, kept(), "the pass was not kept") },
		func() { // the same targets after another first token
			changed := data(1)
			changed[0]["model_input"] = object{"chunks": []any{object{"tokens": []int{20, 6, 7}}}}
			c.do("forward", c.next(forward(changed)))
		},
		func() {
			other.do("forward", other.next(forward(data(1))))
			expect.True(t, !kept(), "two passes are kept")
		},
		func() { // other weights, of the same run
			path := c.do("save_weights", c.next(object{"path": "a"}))["path"]
			c.do("load_weights", c.next(object{"path": path, "optimizer": true}))
			expect.True(t, !kept(), "the pass of weights that were replaced is kept")
		},
	} {
		before := logs(c.do("forward", c.next(forward(data(1)))))
		between()
		out := c.do("forward_backward", c.next(examples("cross_entropy", data(0.2))))
		expect.Equal(t, before, logs(out), "log π")
		expect.True(t, !kept(), "the pass is kept after its gradient")
		c.do("forward", c.next(forward(data(1)))) // of weights that the step changes
		c.do("optim_step", c.next(object{"adam_params": object{"learning_rate": 1e-2, "eps": 1e-8, "grad_clip_norm": 0.5}}))
		expect.True(t, !kept(), "the pass of weights that a step changed is kept")
		got = append(got, out["metrics"].(object)["loss:sum"].(float64))
	}
	expect.Equal(t, want, got)
}

// TestMask: a target with mask 0 has no loss, whatever its weight, and its log π is 0; the others are as without a mask.
func TestMask(t *testing.T) {
	s := tiny(t)
	c := s.client(1)
	want := c.lessons(3)
	all := logs(c.do("forward", c.next(forward(data(1)))))
	c = s.client(1)
	masked := data(0.2)
	for i := range masked {
		inputs := masked[i]["loss_fn_inputs"].(object)
		weights := inputs["weights"].(object)["data"].([]float64)
		mask := make([]float64, len(weights))
		for j, w := range weights {
			if w != 0 {
				mask[j] = 1
			} else {
				weights[j] = 1e3
			}
		}
		inputs["mask"] = object{"data": mask}
	}
	var got []float64
	for range 3 {
		got = append(got, c.do("forward_backward", c.next(examples("cross_entropy", masked)))["metrics"].(object)["loss:sum"].(float64))
		c.do("optim_step", c.next(object{"adam_params": object{"learning_rate": 1e-2, "eps": 1e-8, "grad_clip_norm": 0.5}}))
	}
	for i := range want {
		expect.True(t, math.Abs(want[i]-got[i]) < 1e-5, "loss %g, without a mask %g", got[i], want[i])
	}
	for i, l := range logs(c.do("forward", c.next(forward(masked)))) {
		expect.True(t, len(l) == len(all[i]) && l[0].(float64) == 0, "log π %v, without a mask %v", l, all[i])
		for j := 1; j < len(l); j++ {
			expect.True(t, math.Abs(all[i][j].(float64)-l[j].(float64)) < 1e-4, "log π %v, without a mask %v", l, all[i])
		}
	}
	masked[1]["loss_fn_inputs"].(object)["mask"] = object{"data": []int{0, 0}}
	expect.Contains(t, text(s.result(s.call("forward", c.next(forward(masked))))["error"]), "data 1: mask: every number is 0")
}
