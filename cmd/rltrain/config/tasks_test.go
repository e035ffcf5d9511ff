package config_test

import (
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
)
