// Replaces gloo's header, which libtorch does not ship but ProcessGroupGloo.hpp includes.
#pragma once
