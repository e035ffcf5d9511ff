package serve

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"slices"

	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
)

// mostTop is the maximum number of alternatives per token.
const mostTop = 20

// greedy reports whether sampling always selects the most likely token.
func greedy(s torch.Sampling) bool { return s.Temperature == 0 || s.TopK == 1 }

// evaluated reports whether the finished text goes through the model once more, for alternatives or for the prompt's tokens.
// A stream then has one chunk per choice.
func (f *form) evaluated() bool { return f.top > 0 || f.echo != nil }

// allowTop checks the number of alternatives, which a request gives in field, and the size of a response that has them or the
// prompts; longest is the number of tokens of the longest prompt.
func (s *Server) allowTop(f *form, field string, longest int) error {
	o := f.job.options.Sampling
	tokens := f.job.options.MaxNew
	if f.echo != nil {
		tokens += longest
	}
	most := len(f.job.prompts) * f.job.options.Samples * tokens * (1 + max(0, f.top))
	filtered := o.TopK != 0 || o.TopP < 1 || o.MinP != 0 || o.RepetitionPenalty != 1
	switch {
	case f.top < -1 || f.top > mostTop:
		return bad(field, "%s %d is out of range; it must be 0 to %d", field, f.top, mostTop)
	case f.evaluated() && f.top >= 0 && filtered && !greedy(o) && !s.config.Raw:
		return bad(field, "%s needs the distribution without filters; drop top_k, top_p, min_p and repetition_penalty, or start the server with --logprobs-mode raw_logprobs", field)
	case f.evaluated() && most > mostEvaluated:
		return bad(field, "the response could have %d tokens and alternatives, more than %d; ask for fewer prompts, completions or tokens at once", most, mostEvaluated)
	}
	return nil
}

// unwritten ends a job that generates nothing: the response has the prompts alone.
func (j *job) unwritten() {
	j.wake = make(chan struct{}, 1)
	for i := range len(j.prompts) * j.options.Samples {
		j.news = append(j.news, news{choice: i, done: &policy.Completion{Reason: torch.ReasonLength}})
	}
	j.end(nil)
}

// parts turns news into parts of a stream.
func (s *Server) parts(ctx context.Context, f *form, all []news) ([]*part, error) {
	if !f.evaluated() {
		return gather(all), nil
	}
	slices.SortStableFunc(all, func(a, b news) int { return a.choice - b.choice })
	var parts []*part
	for _, n := range all {
		p, err := s.finished(ctx, f, n)
		if err != nil {
			return nil, err
		}
		parts = append(parts, p)
	}
	return parts, nil
}

// finished is a whole choice, evaluated by the model if the request asks for it.
func (s *Server) finished(ctx context.Context, f *form, n news) (*part, error) {
	c := n.done
	p := &part{index: n.choice, text: c.Text, ids: c.IDs, logs: f.job.logs(*c), offsets: &offsets{}, first: true, done: c, written: len(c.IDs)}
	if !f.evaluated() {
		return p, nil
	}
	at := n.choice / f.job.options.Samples
	prompt := f.job.prompts[at]
	ids, from := slices.Concat(prompt, c.IDs), len(prompt)
	if f.echo != nil {
		p.text, p.ids, from = f.echo[at]+p.text, ids, 1
	}
	if f.top < 0 {
		return p, nil
	}
	if known, ok := f.scored[at]; ok && len(c.IDs) == 0 {
		p.top = known
		return p, nil
	}
	temperature := 1.0
	if !f.job.raw {
		// Scaled log-probs must stay finite; sampling at such a temperature is greedy in effect.
		temperature = max(f.job.options.Sampling.Temperature, 1e-4)
	}
	err := s.engine.ask(ctx, func() (err error) {
		if !slices.Contains(s.engine.lanes, f.lane) {
			return refuse(http.StatusNotFound, "model", "adapter %q was unloaded", f.lane.name)
		}
		p.top, err = f.lane.policy.TopLogProbs(ctx, ids, from, f.top, temperature)
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, one := range p.top {
		if log := float64(one.LogProb); math.IsNaN(log) || math.IsInf(log, 0) {
			return nil, fmt.Errorf("%w: probabilities are not finite", errFailed)
		}
	}
	if len(c.IDs) == 0 {
		if f.scored == nil {
			f.scored = map[int][]policy.TopLogProbs{}
		}
		f.scored[at] = p.top
	}
	return p, nil
}

// at is the log-prob of the part's token i and its alternatives.
func (p *part) at(i int) (float32, policy.TopLogProbs) {
	if len(p.top) == 0 {
		return p.logs[i], policy.TopLogProbs{}
	}
	one := p.top[i-(len(p.ids)-len(p.top))]
	return one.LogProb, one
}

// unknown reports whether the part begins with the first token of a text, which has no log-prob.
func (p *part) unknown() bool { return len(p.ids) > p.written && len(p.ids) > len(p.top) }
