package reward

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/program"
	"github.com/rltrain/rltrain/internal/within"
)

// Text is a list of rewards for what language models write. Several goroutines may use it at
// the same time; a program then answers one batch after the other.
type Text struct {
	pieces  []piece
	rewards []textReward // of the pieces
}

// textReward judges a batch, up to parallel completions at a time where that says anything.
// What ctx interrupts has an error.
type textReward interface {
	judge(ctx context.Context, completions []envs.Completion, parallel int) judged
}

// ParseText reads a list of rewards, see the package's description; own are the task's own
// rewards by name. EXPR is written in the language of github.com/expr-lang/expr and yields a
// number or a condition, which counts as 1 or 0. It knows
//
//	correct, formatted   1 or 0, as the task judged the episode; also conditions
//	answer, truth        the answer that the task found, and the right one
//	text                 the turn to be judged
//	written              all that was written up to its end
//	prompt               what the episode showed: its text, or the last message of the user
//	length words lines   of the turn: characters, words between spaces, lines
//	+ - * / % ** ^   == != < <= > >=   and or not && || !   c ? a : b   in [a, b]
//	contains startsWith endsWith matches   text[i:j] (bytes)
//	abs ceil exp float floor int log max min pow round sqrt string
//	hasPrefix hasSuffix indexOf lastIndexOf len lower split trim trimPrefix trimSuffix upper
//
// Nothing in it repeats or remembers, so an evaluation ends, in a time that grows with the
// text and with the expression, which has 4,096 bytes at most. An expression that reads correct,
// formatted, answer or truth earns 0 at a turn behind which the episode goes on, for it is judged
// at its end; of an episode that the task does not judge they are an error.
//
// A program has to exist, and is started by the first Score; a model is opened.
//
// Errors name the piece and, in an expression, the column.
func ParseText(spec string, own map[string]envs.Reward, o Options) (*Text, error) {
	timeout, err := o.timeout()
	if err != nil {
		return nil, err
	}
	for name := range own {
		if name == "" || slices.Contains(reserved, name) || strings.ContainsAny(name, ",=:'\"` \t\n") {
			return nil, fmt.Errorf("the task names a reward %q: a name is none of %s, and has no space, quote, comma, equals sign or colon", name, strings.Join(reserved, ", "))
		}
	}
	r := &Text{}
	if r.pieces, err = parseList(spec, o, slices.Collect(maps.Keys(own))); err != nil {
		return nil, err
	}
	for _, p := range r.pieces {
		var judge textReward
		switch p.kind {
		case kindExpr:
			judge, err = compileText(p.body)
		case kindCmd:
			var judged *program.Program
			judged, err = program.New(p.body, timeout)
			judge = textProgram{judged}
		case kindModel:
			judge, err = o.critic(p.body)
		case kindRubric:
			judge, err = o.rubric(p.body, timeout)
		default:
			judge = ownReward{own[p.name], timeout}
		}
		if err != nil {
			return nil, fmt.Errorf("reward %s: %w", hintQuote(p.name), err)
		}
		r.rewards = append(r.rewards, judge)
	}
	return r, nil
}

// Rubric is the first piece that asks a judge, "" for none.
func (r *Text) Rubric() string {
	for _, p := range r.pieces {
		if p.kind == kindRubric {
			return p.name
		}
	}
	return ""
}

// Names are the rewards' names, in the order of the list.
func (r *Text) Names() []string { return names(r.pieces) }

// Score judges every completion by every reward; see [Scores] for what failed. A task's own
// reward judges up to parallel completions at a time (at least 1). One that takes longer than
// the timeout is given up, even where it ignores its context; an error and a panic are
// failures. The only error is that of ctx.
func (r *Text) Score(ctx context.Context, completions []envs.Completion, parallel int) (Scores, error) {
	said := make([]judged, len(r.rewards))
	var wait sync.WaitGroup
	for j, judge := range r.rewards {
		wait.Go(func() { said[j] = judge.judge(ctx, completions, max(1, parallel)) })
	}
	wait.Wait()
	if err := ctx.Err(); err != nil {
		return Scores{}, err
	}
	return weigh(r.pieces, said, len(completions)), nil
}

// Close ends the programs. Nothing can be judged by them after it.
func (r *Text) Close() {
	for _, judge := range r.rewards {
		if p, ok := judge.(textProgram); ok {
			p.Close()
		}
	}
}

// ownReward is a reward of the task.
type ownReward struct {
	reward  envs.Reward
	timeout time.Duration
}

func (r ownReward) judge(ctx context.Context, completions []envs.Completion, parallel int) judged {
	said := newJudged(len(completions))
	slots := make(chan struct{}, parallel)
	var wait sync.WaitGroup
	for i, c := range completions {
		slots <- struct{}{}
		wait.Go(func() {
			defer func() { <-slots }()
			said.values[i], said.errs[i] = within.Do(ctx, r.timeout, func(ctx context.Context) (float64, error) { return r.reward(ctx, c) })
		})
	}
	wait.Wait()
	return said
}

// textProgram is a program that judges completions.
type textProgram struct{ *program.Program }

// textQuestion is what it is asked.
type textQuestion struct {
	ID        uint64  `json:"id"`
	Prompt    string  `json:"prompt"`
	Text      string  `json:"text"`
	Written   string  `json:"written"`
	Answer    *string `json:"answer"`
	Truth     *string `json:"truth"`
	Correct   *bool   `json:"correct"`
	Formatted *bool   `json:"formatted"`
}

func (r textProgram) judge(ctx context.Context, completions []envs.Completion, _ int) judged {
	return ask(ctx, r.Program, len(completions), func(i int, id uint64) any {
		c := completions[i]
		q := textQuestion{ID: id, Prompt: prompt(c.Observation), Text: c.Action.Text, Written: c.Text}
		if c.Info != nil {
			q.Answer, q.Truth, q.Correct, q.Formatted = &c.Info.Answer, &c.Info.Truth, &c.Info.Correct, &c.Info.FormatOK
		}
		return q
	})
}

// prompt is what an episode showed: its text, or the last message of the user.
func prompt(o envs.Observation) string {
	for _, m := range slices.Backward(o.Messages) {
		if m.Role == envs.RoleUser {
			return m.Content
		}
	}
	return o.Text
}
