// Package envs defines tasks. A task's episodes show a language model a prompt, take its actions and reward them.
//
// An episode is an [Env]; a [Task] makes them. [Register] adds a task under a name. The built-in tasks are in the
// subpackages. This package knows nothing about models or tensors; rewards see a model only as a [Scorer] or a
// [Critic].
package envs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"strings"

	"github.com/rltrain/rltrain/envs/answer"
	"github.com/rltrain/rltrain/envs/dataset"
)

// Roles of a message.
const (
	RoleSystem    = "system"
	RoleUser      = "user"
	RoleAssistant = "assistant"
	RoleTool      = "tool"
)

// Message is one turn of a conversation.
type Message struct {
	Role    string `json:"role"`
	Content string `json:"content"` // its text
	// Fields is the complete message if it has more than a role and a text, such as tool_calls; else nil. Templates and
	// programs see it instead of Role and Content.
	Fields dataset.Object `json:"-"`
}

// MarshalJSON implements json.Marshaler.
func (m Message) MarshalJSON() ([]byte, error) {
	if m.Fields != nil {
		return m.Fields.MarshalJSON()
	}
	type plain Message
	return json.Marshal(plain(m))
}

// TemplateInputs are what a chat template reads besides the messages.
type TemplateInputs struct {
	Tools     []any `json:",omitempty"` // function descriptions; nil for none
	Documents []any `json:",omitempty"` // objects to answer from; nil for none
	// TemplateArgs are extra variables, such as enable_thinking.
	TemplateArgs dataset.Object `json:",omitempty"`
}

// Observation is the start of an episode: either Messages, to render with the model's chat template, or Text, used as
// it is. If the last message is the assistant's, the model continues it.
type Observation struct {
	Text     string
	Messages []Message
	TemplateInputs
	// Stop lists strings that end an action; each is part of the action it ends. Without them, only the end token and
	// the length limit do.
	Stop []string
}

// ErrNotScored is the error of a step whose action could not be scored, although it may be right. The sample is missing
// data and is excluded from all figures.
var ErrNotScored = errors.New("not judged")

// ErrFull is the error of Reset if no more episodes of the task can run at the same time. Others have to be closed first.
var ErrFull = errors.New("no more episodes can run at the same time")

// StopReason says why an action ended.
type StopReason string

const (
	StopEnd       StopReason = "stop"      // the model's end token, which is not part of the text
	StopString    StopReason = "string"    // one of Observation.Stop
	StopLength    StopReason = "length"    // the token limit
	StopCancelled StopReason = "cancelled" // the run cancelled it
)

// Action is the text that a model generated since the last observation or step.
type Action struct {
	Text     string // after the thought
	Thinking string // the thought, without tags; "" if there is none
	Stop     StopReason
}

// Step is an episode's response to an action.
//
// The first Keep bytes of the action stay. Later tokens are removed; the kept bytes of a token that is only partly kept
// return as text. Append follows as text that the model did not generate and is not trained on. A step that Continues
// does not end the turn: the model continues, and reward and discount apply at the turn's end.
type Step struct {
	Keep   int
	Append string
	// Reply is the user's next message, after Append, in a conversation. It ends the assistant's message and starts the
	// next, with the chat template's markers in between.
	Reply string
	// Results are the messages of the tools that the action called, after Append. They follow the assistant's message like
	// a Reply; a step has one of the two.
	Results []Message
	// Anew, after Append, is the conversation that the model reads next in place of its own tokens and a Reply or Results.
	Anew      *Observation
	Continues bool
	Masked    bool    // the policy does not learn from the action
	Reward    float64 // of the turn; NaN if scoring failed
	Done      bool
	Info      *Info // the verification of the episode; nil until then
	// Said is the conversation so far, what the episode showed included; nil if the episode has none.
	Said  []Message
	Tools ToolUse // of the episode so far
}

// Replies returns the messages that follow the action's, nil for none.
func (s Step) Replies() []Message {
	if s.Reply != "" {
		return []Message{{Role: RoleUser, Content: s.Reply}}
	}
	return s.Results
}

// Added returns the text that the step adds to what the model generated, without markers of a chat template.
func (s Step) Added() string {
	var b strings.Builder
	b.WriteString(s.Append)
	for _, m := range s.Replies() {
		b.WriteString(m.Content)
	}
	return b.String()
}

// ToolUse counts the tool calls of an episode.
type ToolUse struct {
	Offered   bool `json:"-"`         // the episode has tools
	Calls     int  `json:"calls"`     // that could be read
	Failed    int  `json:"failed"`    // calls that were answered with an error
	Malformed int  `json:"malformed"` // messages with a call that could not be read
}

// Info is the data of an episode that evaluations aggregate.
type Info struct {
	Correct  bool `json:"correct"`
	FormatOK bool `json:"formatted"` // the response has the answer format
	// FreeForm means that the task asks for no format: FormatOK says whether the response has one of the usual ones.
	FreeForm bool   `json:"free_form,omitempty"`
	FoundBy  string `json:"tier"`   // how the answer was found, see envs/answer
	Answer   string `json:"answer"` // as found, "" if none
	Truth    string `json:"truth"`
	// Unfinished means that the answer equals the correct one but leaves a calculation to do. The task's answer form
	// decides whether it is Correct.
	Unfinished bool `json:"unfinished,omitempty"`
	// Doubted means that the answer is Correct by the task's rule but not by the strictest one, such as a list of guesses
	// that ends in the right number.
	Doubted bool   `json:"doubted,omitempty"`
	Kind    string `json:"kind,omitempty"` // of the episode, if the task reports several kinds separately
	// Tests are the results of a program's tests; nil if the answer is not a program.
	Tests *Tests `json:"tests,omitempty"`
}

// CheckForm decides whether a correct answer counts in its form.
func (i *Info) CheckForm(f answer.Form) {
	i.Unfinished = i.Correct && !answer.Finished(i.Truth, i.Answer)
	i.Doubted = i.Correct && (i.Doubted || i.Unfinished)
	if f != answer.AnyForm && i.Doubted {
		i.Correct, i.Doubted = false, false
	}
}

// Tests is the result of a program's tests.
type Tests struct {
	Class   string  `json:"class"`  // the outcome, in a word
	Passed  int     `json:"passed"` // of Total
	Total   int     `json:"total"`
	Seconds float64 `json:"cpu_s"`             // of processor time
	Message string  `json:"message,omitempty"` // about the first failure
	Program string  `json:"program"`
}

// Env is a single episode. It is used by one goroutine at a time. If it is an io.Closer, it is closed when the episode is over.
type Env interface {
	// Reset restarts the episode and returns its first observation.
	Reset(ctx context.Context) (Observation, error)
	// Step takes one action. Calling it after the episode is done is an error.
	Step(ctx context.Context, action Action) (Step, error)
}

// Demonstrator is an episode with a known solution: the text that SFT trains on after the first observation. The caller
// adds the end token.
type Demonstrator interface {
	Env
	Solution() string
}

// Part is a split of a task's episodes.
type Part string

const (
	Train  Part = "train"
	Eval   Part = "eval"
	Warmup Part = "warmup" // for SFT before Train; a task may return the episodes of Train
)

// Task makes episodes. It is safe for concurrent use.
type Task interface {
	// Len returns the number of different episodes of a part, 0 if unlimited.
	Len(part Part) int
	// Episode returns episode index of a part, from 0. It is a pure function of its arguments and the task's seed.
	// Beyond Len, episodes of Train and Warmup repeat in another order; for Eval it is an error.
	Episode(part Part, index int) (Env, error)
}

// PromptFilter is a task that can drop episodes of Train permanently, such as those longer than the context.
type PromptFilter interface {
	Task
	// FilterPrompts drops the episodes that keep rejects and returns how many.
	FilterPrompts(keep func(Env) (bool, error)) (dropped int, err error)
}

// Choosing is a task with a fixed set of answers.
type Choosing interface {
	Task
	Choices() []string
}

// Open is a task of the user's prompts, whose data may have no correct answers. Evaluation then uses the run's rewards
// on held-out prompts.
type Open interface {
	Task
	// NoAnswers says why no episode has an Info; "" if episodes have one.
	NoAnswers() string
}

// Completion is the input of a reward: one finished episode of one action, or one turn.
type Completion struct {
	Observation Observation
	Text        string    // the text generated so far, including the action
	Action      Action    // the turn to score; Thinking is that of all its messages
	Generated   string    // the turn with its thought, as generated
	Info        *Info     // how the episode verified it; nil if it did not
	Continues   bool      // the episode continues after this turn and is verified later
	Said        []Message // the conversation, with tool calls and results; nil if the episode has none
	Tools       ToolUse
	// Reward is the episode's reward for the turn; NaN if scoring failed.
	Reward float64
}

// Reward scores a completion. An error or a non-finite value means that there is no score; it never counts as 0.
// Rewards are called concurrently.
type Reward func(ctx context.Context, c Completion) (float64, error)

// chatMark is a special token of a chat template.
var chatMark = regexp.MustCompile(`<(\|[^|<>\n]*\|>|/?s>|(?:start|end)_of_turn>)|\[(/?INST\])`)

// Quoted returns a completion for a judge's prompt: a space breaks each special token of chat templates, such as
// "<|im_end|>", so that the completion cannot end its message and speak for the judge.
func Quoted(text string) string {
	return chatMark.ReplaceAllStringFunc(strings.TrimSpace(text), func(mark string) string { return mark[:1] + " " + mark[1:] })
}

// Scorer is a language model used as a judge.
type Scorer interface {
	// Choose returns the model's probabilities of continuing prompt with each of the choices, normalised to sum to 1.
	Choose(ctx context.Context, prompt Observation, choices []string) ([]float64, error)
}

// Critic is a reward model, or a classifier, used as a reward.
type Critic interface {
	// Score returns a number per completion. An entry of errs says why a completion has none.
	Score(ctx context.Context, completions []Completion) (scores []float64, errs []error)
}

// StepCritic is a critic that scores the steps of completions.
type StepCritic interface {
	Critic
	// Steps returns the scores of each completion at the ends of its steps, bytes of its Generated, which separator ends. An entry of
	// errs says why a completion has none.
	Steps(ctx context.Context, completions []Completion, ends [][]int, separator string) (scores [][]float64, errs []error)
}

// Conversing is a task whose episodes go on after the model's first message.
type Conversing interface {
	Task
	// Replies returns the roles of the messages that answer the model, such as RoleTool; nil if none do.
	Replies() []string
	// Waits reports whether the episodes wait for programs or servers of their own, so that they run at the same time.
	Waits() bool
}

// Scoring is a task whose rewards say more than whether episodes succeed: evaluations report their mean too.
type Scoring interface {
	Task
	MeanReward() bool
}

// Begin makes an episode of a task and resets it. The caller closes it.
func Begin(ctx context.Context, task Task, part Part, index int) (Env, Observation, error) {
	episode, err := task.Episode(part, index)
	if err != nil {
		return nil, Observation{}, err
	}
	shown, err := episode.Reset(ctx)
	return episode, shown, err
}

// Show returns the first observation of an episode, which is closed again.
func Show(ctx context.Context, task Task, part Part, index int) (Observation, error) {
	episode, shown, err := Begin(ctx, task, part, index)
	return shown, cmp.Or(err, Close(episode))
}

// Close closes an episode if it has something to close.
func Close(episode Env) error {
	if closer, ok := episode.(io.Closer); ok {
		return closer.Close()
	}
	return nil
}
