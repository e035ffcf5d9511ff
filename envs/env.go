// Package envs says what a task is: episodes that show a language model a situation,
// take what it writes, and judge it.
//
// An episode is an [Env], a task is a [Task] that makes them, and tasks are found by
// name: [Register] adds one. The tasks themselves are in the packages below this one.
// Nothing here knows about models or tensors; a model reaches a reward only as a
// [Scorer] or a [Critic].
package envs

import (
	"context"
	"errors"
	"regexp"
	"strings"

	"github.com/rltrain/rltrain/envs/answer"
)

// Roles of a message.
const (
	RoleSystem    = "system"
	RoleUser      = "user"
	RoleAssistant = "assistant"
)

// Message is one turn of a conversation.
type Message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// Observation is what an episode shows first: either Messages, to be rendered with the
// model's chat template, or Text, to be given as it is. Where the last message is the
// assistant's, the model continues it.
type Observation struct {
	Text     string
	Messages []Message
	// Stop lists the strings that end an action, each part of the action it ends. With
	// none only the model's end token and the length limit do.
	Stop []string
}

// ErrNotScored is the error of a step whose action could not be judged, though it may be right: it is missing data, and
// counts nowhere.
var ErrNotScored = errors.New("not judged")

// StopReason says why an action ended.
type StopReason string

const (
	StopEnd       StopReason = "stop"      // the model's end token, which is not part of the text
	StopString    StopReason = "string"    // one of Observation.Stop
	StopLength    StopReason = "length"    // the limit of tokens
	StopCancelled StopReason = "cancelled" // the run gave it up
)

// Action is what a model wrote since the last observation or step.
type Action struct {
	Text string
	Stop StopReason
}

// Step is the answer of an episode to an action.
//
// Of the action the first Keep bytes stand; tokens that reach past them are taken back
// and what they held of the kept bytes is given again, as text. Append follows as text
// that the model did not write and is not trained on. A step that Continues is not the
// end of its turn: the model goes on writing, and reward and discount wait for the end.
type Step struct {
	Keep   int
	Append string
	// Reply is what the user says next, behind Append, in an episode that shows messages: it ends the assistant's
	// message and begins another, with the marks of the chat template between them.
	Reply     string
	Continues bool
	Reward    float64 // of the turn; NaN where judging failed
	Done      bool
	Info      *Info // how the episode was judged; nil before that
}

// Info is what an evaluation counts.
type Info struct {
	Correct  bool   `json:"correct"`
	FormatOK bool   `json:"formatted"` // the answer has the form that was asked for
	FoundBy  string `json:"tier"`      // how the answer was found, see envs/answer
	Answer   string `json:"answer"`    // as found, "" where there is none
	Truth    string `json:"truth"`
	// Unfinished means that the answer is equal to the correct one and leaves a calculation to do. Whether it is Correct
	// is up to the task's answer form.
	Unfinished bool `json:"unfinished,omitempty"`
	// Doubted means that the answer is Correct by the task's rule and not by the strictest one, as a list of guesses that
	// ends in the right number.
	Doubted bool   `json:"doubted,omitempty"`
	Kind    string `json:"kind,omitempty"` // of the episode, where a task has several that are learnt at their own pace
	// Tests are those of a program, where the answer is one; nil where it is not.
	Tests *Tests `json:"tests,omitempty"`
}

// CheckForm decides whether a correct answer counts in the form that it has.
func (i *Info) CheckForm(f answer.Form) {
	i.Unfinished = i.Correct && !answer.Finished(i.Truth, i.Answer)
	i.Doubted = i.Correct && (i.Doubted || i.Unfinished)
	if f != answer.AnyForm && i.Doubted {
		i.Correct, i.Doubted = false, false
	}
}

// Tests is how a program did against the tests of its problem.
type Tests struct {
	Class   string  `json:"class"`  // how it did, in a word
	Passed  int     `json:"passed"` // of Total
	Total   int     `json:"total"`
	Seconds float64 `json:"cpu_s"` // of processor time
	Program string  `json:"program"`
}

// Env is a single episode. It is used by one goroutine at a time.
type Env interface {
	// Reset starts the episode over and returns what it shows first.
	Reset(ctx context.Context) (Observation, error)
	// Step takes one action. Calling it when the episode is done is an error.
	Step(ctx context.Context, action Action) (Step, error)
}

// Demonstrator is an episode that knows a solution: the text that SFT trains on
// after the first observation. An end token belongs behind it.
type Demonstrator interface {
	Env
	Solution() string
}

// Part tells the episodes to learn from from those to be judged by.
type Part string

const (
	Train  Part = "train"
	Eval   Part = "eval"
	Warmup Part = "warmup" // whose solutions are imitated before Train is learnt from; a task may give those of Train
)

// Task makes episodes. It may be used by several goroutines.
type Task interface {
	// Len is the number of different episodes of a part, 0 where it has no end.
	Len(part Part) int
	// Episode returns episode index of a part, from 0. It is a pure function of its
	// arguments and of the task's seed: equal calls give equal episodes. Past Len the
	// episodes of Train and Warmup come again, in another order; past Len Eval is an error.
	Episode(part Part, index int) (Env, error)
}

// PromptFilter is a task that can leave episodes of Train out for good, as those that a model cannot read.
type PromptFilter interface {
	Task
	// FilterPrompts drops the episodes that keep refuses, and returns how many.
	FilterPrompts(keep func(Env) (bool, error)) (dropped int, err error)
}

// Choosing is a task whose right answers are a few.
type Choosing interface {
	Task
	Choices() []string
}

// Open is a task of exercises of the user's own, whose data may have no right answers: how good a policy is, is what the
// run's rewards, where it names some, make of held-out answers.
type Open interface {
	Task
	// NoAnswers says why no episode has an Info; "" where episodes have one.
	NoAnswers() string
}

// Completion is what a reward judges: one finished episode of one action, or one turn.
type Completion struct {
	Observation Observation
	Text        string // what was written before, and the action
	Action      Action // the turn to be judged
	Info        *Info  // how the episode judged it; nil where it did not
	Continues   bool   // the episode goes on behind this turn, and is judged later
	// Reward is what the episode itself pays for the turn; NaN where judging failed.
	Reward float64
}

// Reward judges a completion. An error, or a value that is not finite, means that there
// is no judgement; it never counts as 0. Several goroutines call it at the same time.
type Reward func(ctx context.Context, c Completion) (float64, error)

// chatMark is a special token of a chat template.
var chatMark = regexp.MustCompile(`<(\|[^|<>\n]*\|>|/?s>|(?:start|end)_of_turn>)|\[(/?INST\])`)

// Quoted is a completion for the prompt of a judge: it cannot end its message and speak for the judge, as with
// "<|im_end|>". A space breaks each special token of chat templates.
func Quoted(text string) string {
	return chatMark.ReplaceAllStringFunc(strings.TrimSpace(text), func(mark string) string { return mark[:1] + " " + mark[1:] })
}

// Scorer is a language model as a judge sees it.
type Scorer interface {
	// Choose returns the probabilities with which the model would continue prompt by
	// each of the choices, scaled to sum to 1.
	Choose(ctx context.Context, prompt Observation, choices []string) ([]float64, error)
}

// Critic is a reward model, or a classifier, as a reward sees it.
type Critic interface {
	// Score gives each completion a number. An entry of errs says why a completion has none.
	Score(ctx context.Context, completions []Completion) (scores []float64, errs []error)
}
