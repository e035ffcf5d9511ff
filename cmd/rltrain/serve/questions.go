package serve

import (
	"context"
	"net/http"
	"slices"

	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch/transformers/jinja"
)

// mostAsked is how many tokens of requests are answered in one batch, at least one request. Completions go on after it.
const mostAsked = 4096

// errNoText refuses what a head cannot do.
var errNoText = bad("model", "the model answers questions with a head: POST /v1/systemone; it writes no text and takes no adapters")

// asked is a request to a decision model.
type asked struct {
	ctx       context.Context
	lane      *lane
	questions policy.Asked

	done    chan struct{} // closed when the fields below are set
	answers *jinja.Dict
	err     error
}

// decide waits for the answers to questions, which go through the model together with those of other requests.
func (e *engine) decide(ctx context.Context, l *lane, questions policy.Asked) (*jinja.Dict, error) {
	a := &asked{ctx: ctx, lane: l, questions: questions, done: make(chan struct{})}
	e.lock.Lock()
	if e.waiting >= e.most {
		e.lock.Unlock()
		return nil, errBusy
	}
	e.waiting++
	e.asked = append(e.asked, a)
	e.lock.Unlock()
	e.wake()
	select {
	case <-a.done:
		return a.answers, a.err
	case <-e.finished:
		return nil, errStopped
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// answer answers the next batch of questions. It returns false if there are none.
func (e *engine) answer(ctx context.Context) bool {
	batch := e.nextAsked()
	if len(batch) == 0 {
		return false
	}
	l := batch[0].lane
	var answers []*jinja.Dict
	err := guarded(e.logf, func() (err error) {
		if l.retired {
			return refuse(http.StatusNotFound, "model", "adapter %q was unloaded", l.name)
		}
		var all []policy.Asked
		for _, a := range batch {
			all = append(all, a.questions)
		}
		answers, err = l.decider.Answer(ctx, all)
		return err
	})
	if ctx.Err() != nil {
		err = errStopped
	}
	for i, a := range batch {
		if a.err = err; err == nil {
			a.answers = answers[i]
		}
		close(a.done)
	}
	return true
}

// nextAsked takes the oldest request and others of its model, without those whose client has gone.
func (e *engine) nextAsked() (batch []*asked) {
	e.lock.Lock()
	defer e.lock.Unlock()
	tokens := 0
	e.asked = slices.DeleteFunc(e.asked, func(a *asked) bool {
		gone := a.ctx.Err() != nil
		if !gone && len(batch) > 0 && (a.lane != batch[0].lane || tokens+a.questions.Tokens > mostAsked) {
			return false
		}
		if e.waiting--; !gone {
			batch, tokens = append(batch, a), tokens+a.questions.Tokens
		}
		return true
	})
	return batch
}
