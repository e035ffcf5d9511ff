package config

import (
	"fmt"
	"time"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/dataset"
)

// Conversations say how a language model's chat template renders conversations.
type Conversations struct {
	TemplateDate string `option:"template_date" arg:"DATE" help:"date that the chat template prints (strftime_now, date_string), such as 2026-01-31; without it the day the run began"`
	TemplateArgs string `option:"chat_template_kwargs" arg:"JSON" help:"variables for the chat template, such as '{\"enable_thinking\": false}'; the column chat_template_kwargs of a row wins"`
}

// Spoken says how a language model that generates renders conversations, and where its texts end.
type Spoken struct {
	Conversations
	ChatTemplate string `option:"chat_template" arg:"FILE" help:"chat template (Jinja), instead of the model's; it is saved with the model"`
	EOSToken     string `option:"eos_token" arg:"TOKEN" help:"token that ends a text, instead of the tokenizer's; it is saved with the model"`
}

// DateLayout is the form of template_date.
const DateLayout = time.DateOnly

// Check refuses what is no date and what is no JSON object.
func (o *Conversations) Check() error {
	if _, err := o.Date(); err != nil {
		return err
	}
	_, err := o.Args()
	return err
}

// Date is the date of the chat template, zero where none is given.
func (o *Conversations) Date() (time.Time, error) {
	if o.TemplateDate == "" {
		return time.Time{}, nil
	}
	date, err := time.Parse(DateLayout, o.TemplateDate)
	if err != nil {
		return date, envs.OptionErrorf("template_date", "%q is not a date such as 2026-01-31", o.TemplateDate)
	}
	return date, nil
}

// dateString is how templates of Llama write the variable date_string.
const dateString = "02 Jan 2006"

// Args are the variables of the chat template. A date that is given is date_string, too, which some templates read instead of
// a clock.
func (o *Conversations) Args() (dataset.Object, error) {
	args, err := TemplateArgs(o.TemplateArgs)
	if err != nil {
		return nil, envs.OptionErrorf("chat_template_kwargs", "%v", err)
	}
	date, err := o.Date()
	if _, given := args.Get("date_string"); err != nil || date.IsZero() || given {
		return args, err
	}
	return args.With("date_string", date.Format(dateString)), nil
}

// TemplateArgs reads the variables of a chat template, a JSON object; "" is none.
func TemplateArgs(text string) (dataset.Object, error) {
	if text == "" {
		return nil, nil
	}
	value, err := dataset.Parse(text)
	args, ok := value.(dataset.Object)
	if err != nil || !ok {
		return nil, fmt.Errorf("%q is not a JSON object such as {\"enable_thinking\": false}", text)
	}
	return args, nil
}

// Conversations are those of the language model, nil where a classifier is trained.
func (c *Config) Conversations() *Conversations {
	switch {
	case c.Tokens != nil:
		return &c.Tokens.Conversations
	case c.Rewarding != nil:
		return &c.Rewarding.Conversations
	}
	return nil
}
