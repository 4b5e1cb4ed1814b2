#define BOOST_TEST_MODULE aoizora
#include <boost/test/included/unit_test.hpp>
