// The one translation unit that holds Boost.JSON's code; the rooms include <boost/json.hpp> in their .cpp files only.
#include <boost/json/src.hpp>
