package config

import (
	_ "rltrain/envs/chat"
	_ "rltrain/envs/code"
	_ "rltrain/envs/digits"
	_ "rltrain/envs/intent"
	_ "rltrain/envs/math"
	_ "rltrain/envs/preference"
	_ "rltrain/envs/prompts"
	_ "rltrain/envs/text"
)
