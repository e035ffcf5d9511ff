package config_test

import (
	"testing"

	"github.com/rltrain/rltrain/cmd/rltrain/config"
	_ "github.com/rltrain/rltrain/envs/chat"
	_ "github.com/rltrain/rltrain/envs/code"
	_ "github.com/rltrain/rltrain/envs/decisions"
	_ "github.com/rltrain/rltrain/envs/digits"
	_ "github.com/rltrain/rltrain/envs/intent"
	_ "github.com/rltrain/rltrain/envs/math"
	_ "github.com/rltrain/rltrain/envs/play"
	_ "github.com/rltrain/rltrain/envs/preference"
	_ "github.com/rltrain/rltrain/envs/prompts"
	_ "github.com/rltrain/rltrain/envs/text"
	"github.com/rltrain/rltrain/internal/expect"
)

func TestConversations(t *testing.T) {
	for _, c := range []struct {
		o    config.Conversations
		args string
		err  string
	}{
		{config.Conversations{}, "{}", ""},
		{config.Conversations{TemplateArgs: `{"enable_thinking": false}`}, `{"enable_thinking":false}`, ""},
		{config.Conversations{TemplateDate: "2026-01-31", TemplateArgs: `{"a": 1}`}, `{"a":1,"date_string":"31 Jan 2026"}`, ""},
		{config.Conversations{TemplateDate: "2026-01-31", TemplateArgs: `{"date_string": "today"}`}, `{"date_string":"today"}`, ""},
		{config.Conversations{TemplateDate: "31.1.2026"}, "", "template_date"},
		{config.Conversations{TemplateArgs: "[1]"}, "", "chat_template_kwargs"},
		{config.Conversations{TemplateArgs: "{"}, "", "chat_template_kwargs"},
	} {
		err := c.o.Check()
		if c.err != "" {
			expect.Error(t, err, c.err)
			continue
		}
		args, other := c.o.Args()
		if err != nil || other != nil {
			t.Errorf("%+v: %v, %v", c.o, err, other)
			continue
		}
		data, err := args.MarshalJSON()
		expect.True(t, err == nil && string(data) == c.args, "%+v: %s, %v; want %s", c.o, data, err, c.args)
	}
}
